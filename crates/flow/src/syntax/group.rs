//! Groups and meters.

use super::PortNames;
use super::actions::actions;
use super::text::{SyntaxError, Text};
use super::value::{port, small};
use crate::field::Field;
use crate::model::{Bucket, GroupKind, GroupSpec, MeterSpec};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Most buckets of a group.
const BUCKETS: usize = 1024;

/// Reads a group: `group_id=1,type=select,bucket=weight:2,output:1,bucket=output:2`.
pub fn group(line: &str, names: PortNames<'_>) -> Result<GroupSpec> {
    let text = Text::new(line);
    // A bucket reaches to the next one.
    let starts: Vec<usize> = line
        .match_indices("bucket=")
        .map(|(at, _)| at)
        .filter(|at| *at == 0 || line[..*at].ends_with([',', ' ']))
        .collect();
    let mut head = text.sub(0, starts.first().copied().unwrap_or(line.len()));
    let (mut id, mut kind, mut fields) = (None, None, Vec::new());
    while let Some((name, value)) = head.next_item()? {
        let Some(value) = value.filter(|v| !v.is_empty()) else {
            return name.wrong(format!("{} wants a value", name.str()));
        };
        match name.str() {
            "group_id" => id = Some(group_number(value)?),
            "type" => kind = Some(group_kind(value)?),
            "selection_method" if matches!(value.str(), "hash" | "dp_hash") => {}
            "selection_method" => return value.wrong("the selection methods are hash and dp_hash"),
            "fields" => {
                let mut list = value;
                while let Some((name, _)) = list.next_item()? {
                    match Field::find(name.str()) {
                        Some(field) => fields.push(field),
                        None => return name.wrong(format!("`{}` is no field", name.str())),
                    }
                }
            }
            other => return name.wrong(format!("`{other}` is no property of a group")),
        }
    }
    let Some(id) = id else { return text.wrong("a group needs `group_id=`") };
    let kind = kind.unwrap_or(GroupKind::All);
    if starts.len() > BUCKETS {
        return text.sub(starts[BUCKETS], line.len()).wrong(format!("more than {BUCKETS} buckets"));
    }
    let mut buckets = Vec::new();
    for (i, start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(line.len());
        buckets.push(bucket(text.sub(start + "bucket=".len(), end), i as u32, kind, names)?);
    }
    if kind == GroupKind::Indirect && buckets.len() != 1 {
        return text.wrong("an indirect group has one bucket");
    }
    Ok(GroupSpec { id, kind, fields, buckets })
}

fn group_number(text: Text<'_>) -> Result<u32> {
    match small(text, 32)? {
        id if id > 0xffff_ff00 => text.wrong("groups are 0 to 0xffffff00"),
        id => Ok(id),
    }
}

fn group_kind(text: Text<'_>) -> Result<GroupKind> {
    match text.str() {
        "all" => Ok(GroupKind::All),
        "select" => Ok(GroupKind::Select),
        "ff" | "fast_failover" => Ok(GroupKind::FastFailover),
        "indirect" => Ok(GroupKind::Indirect),
        other => text.wrong(format!("`{other}` is none of all, select, ff, indirect")),
    }
}

fn bucket(text: Text<'_>, id: u32, kind: GroupKind, names: PortNames<'_>) -> Result<Bucket> {
    let mut bucket = Bucket { id, weight: 1, watch_port: None, watch_group: None, actions: Vec::new() };
    let mut rest = text;
    loop {
        let before = rest;
        let Some((name, value)) = rest.next_item()? else { break };
        let value = value.filter(|v| !v.is_empty());
        match (name.str(), value) {
            ("bucket_id", Some(value)) => bucket.id = small(value, 32)?,
            ("weight", Some(value)) => bucket.weight = small(value, 16)?,
            ("watch_port", Some(value)) => bucket.watch_port = Some(port(value, names)?),
            ("watch_group", Some(value)) => bucket.watch_group = Some(small(value, 32)?),
            ("actions" | "action", _) => {
                let at = name.str().len() + 1;
                let skip = before.str().len() - before.str().trim_start_matches([',', ' ', '\t']).len();
                bucket.actions = actions(before.from((skip + at).min(before.str().len())).trim(), names, None)?;
                break;
            }
            _ => {
                bucket.actions = actions(before.trim(), names, None)?;
                break;
            }
        }
    }
    if kind == GroupKind::FastFailover && bucket.watch_port.is_none() && bucket.watch_group.is_none() {
        return text.wrong("a bucket of a fast-failover group needs watch_port or watch_group");
    }
    Ok(bucket)
}

/// Which group: `group_id=1`; none: all.
pub fn group_id(line: &str) -> Result<Option<u32>> {
    only(line, "group_id", group_number)
}

/// Which meter: `meter=1`; none: all.
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
                Some((name, _)) => name.wrong(format!("only `{key}` can be given")),
                None => Ok(Some(id)),
            }
        }
        Some((name, _)) => name.wrong(format!("only `{key}=` can be given")),
    }
}

/// Reads a meter: `meter=1,pktps,burst,bands=type=drop,rate=1000,burst_size=100`.
pub fn meter(line: &str) -> Result<MeterSpec> {
    let text = Text::new(line);
    let mut rest = text;
    let (mut id, mut packets, mut rate, mut burst, mut bands) = (None, None, None, 0, 0);
    while let Some((name, value)) = rest.next_item()? {
        match (name.str(), value) {
            ("meter", Some(value)) => id = Some(small(value, 32)?),
            ("pktps", None) => packets = Some(true),
            ("kbps", None) => packets = Some(false),
            ("burst" | "stats", None) => {}
            ("bands" | "band", Some(value)) => {
                bands += 1;
                if bands > 1 {
                    return name.wrong("a meter has one band here");
                }
                if value.str() != "type=drop" {
                    return value.wrong("the only type of band is drop");
                }
            }
            ("type", Some(value)) if value.str() == "drop" => {}
            ("rate", Some(value)) => rate = Some(small(value, 32)?),
            ("burst_size", Some(value)) => burst = small(value, 32)?,
            (other, _) => return name.wrong(format!("`{other}` is no property of a meter")),
        }
    }
    let Some(id) = id.filter(|id| *id > 0) else { return text.wrong("a meter needs `meter=`, from 1 on") };
    let Some(rate) = rate.filter(|r| *r > 0) else {
        return text.wrong("a meter needs `bands=type=drop,rate=`, above 0");
    };
    Ok(MeterSpec { id, packets: packets.unwrap_or(false), rate, burst })
}
