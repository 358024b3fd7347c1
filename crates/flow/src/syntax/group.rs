//! Parsers of groups and meters.

use super::PortNames;
use super::actions::{Place, actions};
use super::text::{SyntaxError, Text};
use super::value::{port, small};
use crate::field::Field;
use crate::model::{Bucket, GroupKind, GroupSpec, MeterSpec};
use std::collections::HashSet;

type Result<T> = std::result::Result<T, SyntaxError>;

/// Maximum number of buckets of a group.
const BUCKETS: usize = 1024;

/// Parses a group: `group_id=1,type=select,bucket=weight:2,output:1,bucket=output:2`.
pub fn group(line: &str, names: PortNames<'_>) -> Result<GroupSpec> {
    let text = Text::new(line);
    // Each bucket extends to the start of the next one.
    let starts: Vec<usize> = line
        .match_indices("bucket=")
        .map(|(at, _)| at)
        .filter(|at| *at == 0 || line[..*at].ends_with([',', ' ']))
        .collect();
    let mut head = text.sub(0, starts.first().copied().unwrap_or(line.len()));
    let (mut id, mut kind, mut fields) = (None, None, Vec::new());
    // Properties that only select groups have.
    let (mut method, mut hashed) = (None, None);
    while let Some((name, value)) = head.next_item()? {
        let Some(value) = value.filter(|v| !v.is_empty()) else {
            return name.wrong(format!("{} needs a value", name.str()));
        };
        match name.str() {
            "group_id" => id = Some(group_number(value)?),
            "type" => kind = Some(group_kind(value)?),
            "selection_method" if matches!(value.str(), "hash" | "dp_hash") => method = Some(value),
            "selection_method" => return value.wrong("unknown selection method: use hash or dp_hash"),
            "fields" => {
                let mut list = value;
                hashed = Some(name);
                while let Some((name, mask)) = list.next_item()? {
                    match Field::find(name.str()) {
                        Some(_) if mask.is_some() => return name.wrong("fields are hashed whole: no mask is possible"),
                        Some(field) => fields.push(field),
                        None => return name.wrong(format!("unknown field `{}`", name.str())),
                    }
                }
            }
            other => return name.wrong(format!("unknown group property `{other}`")),
        }
    }
    let Some(id) = id else { return text.wrong("a group needs `group_id=`") };
    let kind = kind.unwrap_or(GroupKind::All);
    if let Some(only) = method.or(hashed).filter(|_| kind != GroupKind::Select) {
        return only.wrong("only groups of type select have a selection method and fields");
    }
    if let Some(hashed) = hashed.filter(|_| method.is_some_and(|method| method.str() == "dp_hash")) {
        return hashed.wrong("dp_hash chooses the fields itself: use selection_method=hash");
    }
    if starts.len() > BUCKETS {
        return text.sub(starts[BUCKETS], line.len()).wrong(format!("too many buckets: a group has at most {BUCKETS}"));
    }
    let mut ids = HashSet::new();
    let mut read = Vec::new();
    for (i, start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(line.len());
        read.push(bucket(text.sub(start + "bucket=".len(), end), &mut ids, kind, names)?);
    }
    // Buckets without an id get the lowest ones that are left.
    let mut free = (0..).filter(|id| !ids.contains(id));
    let buckets = read.into_iter().map(|(id, bucket)| Bucket { id: id.or_else(|| free.next()).unwrap_or(0), ..bucket });
    let buckets: Vec<Bucket> = buckets.collect();
    if kind == GroupKind::Indirect && buckets.len() != 1 {
        return text.wrong("an indirect group must have exactly one bucket");
    }
    Ok(GroupSpec { id, kind, fields, buckets })
}

fn group_number(text: Text<'_>) -> Result<u32> {
    match small(text, 32)? {
        id if id > 0xffff_ff00 => text.wrong("group id out of range: group ids are 0 to 0xffffff00"),
        id => Ok(id),
    }
}

fn group_kind(text: Text<'_>) -> Result<GroupKind> {
    match text.str() {
        "all" => Ok(GroupKind::All),
        "select" => Ok(GroupKind::Select),
        "ff" | "fast_failover" => Ok(GroupKind::FastFailover),
        "indirect" => Ok(GroupKind::Indirect),
        other => text.wrong(format!("unknown group type `{other}`: use all, select, ff or indirect")),
    }
}

/// Parses a bucket; returns it with the id that it was given, which is added to `ids`.
fn bucket(
    text: Text<'_>,
    ids: &mut HashSet<u32>,
    kind: GroupKind,
    names: PortNames<'_>,
) -> Result<(Option<u32>, Bucket)> {
    let mut id = None;
    let mut bucket = Bucket { id: 0, weight: 1, watch_port: None, watch_group: None, actions: Vec::new() };
    let mut rest = text;
    loop {
        let before = rest;
        let Some((name, value)) = rest.next_item()? else { break };
        let value = value.filter(|v| !v.is_empty());
        match (name.str(), value) {
            ("bucket_id", Some(value)) => match small(value, 32)? {
                0xffff_ff01.. => return value.wrong("bucket id out of range: bucket ids are 0 to 0xffffff00"),
                given => id = Some((given, value)),
            },
            ("weight", Some(value)) => {
                bucket.weight = small(value, 16)?;
                // A dump shows the weight 1 of any bucket.
                if kind != GroupKind::Select && bucket.weight != 1 {
                    return name.wrong("only buckets of a select group have a weight");
                }
            }
            ("watch_port" | "watch_group", _) if matches!(kind, GroupKind::All | GroupKind::Indirect) => {
                return name.wrong(format!("{}: all buckets of this type of group run, live or not", name.str()));
            }
            ("watch_port", Some(value)) => bucket.watch_port = Some(port(value, names)?),
            ("watch_group", Some(value)) => bucket.watch_group = Some(small(value, 32)?),
            ("actions" | "action", _) => {
                let at = name.str().len() + 1;
                let skip = before.str().len() - before.str().trim_start_matches([',', ' ', '\t']).len();
                bucket.actions =
                    actions(before.from((skip + at).min(before.str().len())).trim(), names, Place::Bucket)?;
                break;
            }
            _ => {
                bucket.actions = actions(before.trim(), names, Place::Bucket)?;
                break;
            }
        }
    }
    if kind == GroupKind::FastFailover && bucket.watch_port.is_none() && bucket.watch_group.is_none() {
        return text.wrong("a bucket of a fast-failover group needs watch_port or watch_group");
    }
    match id {
        Some((id, value)) if !ids.insert(id) => value.wrong("another bucket has this id"),
        id => Ok((id.map(|(id, _)| id), bucket)),
    }
}

/// Parses a group selector such as `group_id=1`. Returns `None`, which means all groups, for an empty line or the value
/// `all`.
pub fn group_id(line: &str) -> Result<Option<u32>> {
    only(line, "group_id", group_number)
}

/// Parses a meter selector such as `meter=1`. Returns `None`, which means all meters, for an empty line or the value
/// `all`.
pub fn meter_id(line: &str) -> Result<Option<u32>> {
    only(line, "meter", |text| small(text, 32))
}

fn only<T>(line: &str, key: &str, read: impl Fn(Text<'_>) -> Result<T>) -> Result<Option<T>> {
    let mut rest = Text::new(line);
    match rest.next_item()? {
        None => Ok(None),
        Some((name, Some(value))) if name.str() == key => {
            if value.str() == "all" {
                return Ok(None);
            }
            let id = read(value)?;
            match rest.next_item()? {
                Some((name, _)) => name.wrong(format!("unexpected property: only `{key}` is allowed here")),
                None => Ok(Some(id)),
            }
        }
        Some((name, _)) => name.wrong(format!("unexpected property: only `{key}=` is allowed here")),
    }
}

/// Parses a meter: `meter=1,pktps,burst,bands=type=drop,rate=1000,burst_size=100`.
pub fn meter(line: &str) -> Result<MeterSpec> {
    let text = Text::new(line);
    let mut rest = text;
    let (mut id, mut packets, mut rate, mut burst, mut bands) = (None, None, None, None, 0);
    let mut bursts = None;
    while let Some((name, value)) = rest.next_item()? {
        match (name.str(), value) {
            ("meter", Some(value)) => id = Some(small(value, 32)?),
            ("pktps" | "kbps", None) if packets.is_some() => {
                return name.wrong("a meter counts either packets or kilobits: give one of pktps and kbps");
            }
            ("pktps", None) => packets = Some(true),
            ("kbps", None) => packets = Some(false),
            ("burst", None) => bursts = Some(name),
            // Every meter has statistics.
            ("stats", None) => {}
            ("bands" | "band", Some(value)) => {
                bands += 1;
                if bands > 1 {
                    return name.wrong("too many bands: a meter has exactly one");
                }
                if value.str() != "type=drop" {
                    return value.wrong("unknown band type: use `type=drop`");
                }
            }
            ("type", Some(value)) if value.str() == "drop" => {}
            ("rate", Some(value)) => rate = Some(small(value, 32)?),
            ("burst_size", Some(value)) => burst = Some((name, small(value, 32)?)),
            (other, _) => return name.wrong(format!("invalid meter property `{other}`")),
        }
    }
    let Some(id) = id.filter(|id| *id > 0) else { return text.wrong("a meter needs `meter=` with an id above 0") };
    let Some(rate) = rate.filter(|r| *r > 0) else {
        return text.wrong("a meter needs `bands=type=drop,rate=` with a rate above 0");
    };
    let burst = match (bursts, burst) {
        (Some(_), Some((_, burst))) if burst > 0 => burst,
        (Some(flag), _) => return flag.wrong("burst needs `burst_size=` with a size above 0"),
        (None, Some((size, _))) => return size.wrong("burst_size has no effect without `burst`"),
        (None, None) => 0,
    };
    Ok(MeterSpec { id, packets: packets.unwrap_or(false), rate, burst })
}
