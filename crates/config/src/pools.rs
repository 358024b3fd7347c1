//! Pools: `[pool]`, or several `[[pool]]`, each for some of the workers.

use crate::choice::*;
use crate::model::{Config, OF_ARENA, PoolConfig};
use crate::problem::{ConfigErrors, Problem};

/// Buffers that a worker may hold outside its rings: a burst being processed, packets waiting for neighbour resolution,
/// bursts being collected for transmission.
const SPARE: usize = 1024;

/// Pool of one or more workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// Name of the pool.
    pub name: String,
    /// Index of its settings in [`Config::pools`].
    pub settings: usize,
    /// Workers that allocate from it, in ascending order.
    pub workers: Vec<usize>,
}

impl PoolConfig {
    /// Returns whether `worker` is one of those it names.
    fn names(&self, worker: usize) -> bool {
        let side = if worker.is_multiple_of(2) { Side::Upper } else { Side::Lower };
        self.workers.as_ref().is_none_or(|workers| workers.contains(&worker))
            && self.group.is_none_or(|group| group == worker / 2 + 1)
            && self.side.is_none_or(|named| named == side)
    }

    /// Returns the most buffers that each worker's cache can hold.
    pub fn cache_frames(&self) -> usize {
        let of_kind = |kind: &PoolKind| kind.default_cache();
        let most = || self.kind.set().map_or(PoolKind::Ring.default_cache(), of_kind);
        self.cache.set().copied().unwrap_or_else(most)
    }

    /// Returns the size, in buffers, of a pool that must hold `needed` buffers.
    ///
    /// # Errors
    /// The configured size if it is smaller than `needed`.
    pub fn frames_for(&self, needed: usize) -> Result<usize, usize> {
        match self.frames.set() {
            // Two more blocks: one being handed out, and one that waits for its last cell to be freed.
            None if self.blocks() => Ok((needed + SPARE).next_multiple_of(self.block) + 2 * self.block),
            None => Ok(needed + SPARE),
            Some(&frames) if frames >= needed => Ok(frames),
            Some(&frames) => Err(frames),
        }
    }

    /// Returns true if cells are or may be handed out and reclaimed in blocks.
    pub fn blocks(&self) -> bool {
        self.kind.set().is_none_or(|kind| kind.blocks())
    }

    /// Returns true if a cell can hold several packets.
    pub fn packed(&self) -> bool {
        self.kind.set().is_some_and(|kind| kind.packed())
    }

    /// Returns the parameters of a pool of this kind with these settings and `frames` buffers.
    pub fn pool(&self, name: &str, kind: PoolKind, frames: usize) -> bywash_frame::PoolConfig {
        let default = bywash_frame::PoolConfig::new(name, kind, frames);
        let cache = self.cache.set().copied().filter(|_| !kind.blocks()).unwrap_or(default.cache);
        bywash_frame::PoolConfig { cache, block: self.block, cpu: self.cpu, ..default }
    }

    /// Returns the names and workers of its pools: one pool per worker, to avoid contention, except for `sdb`, whose
    /// workers share one pool by design.
    fn pools(&self, workers: Vec<usize>, all: bool) -> Vec<(String, Vec<usize>)> {
        let list = |workers: &[usize]| workers.iter().map(usize::to_string).collect::<Vec<_>>().join("-");
        let (named, shared) = (self.name.clone(), self.kind == Auto::Set(PoolKind::Sdb));
        match named {
            _ if workers.is_empty() => vec![],
            Some(name) if shared || workers.len() == 1 => vec![(name, workers)],
            Some(name) => workers.into_iter().map(|worker| (format!("{name}-{worker}"), vec![worker])).collect(),
            None if shared && all => vec![("shared".into(), workers)],
            None if shared => vec![(format!("shared{}", list(&workers)), workers)],
            None => workers.into_iter().map(|worker| (format!("worker{worker}"), vec![worker])).collect(),
        }
    }
}

impl Config {
    /// Returns the settings of all workers that no `[[pool]]` names; `None` if there are none.
    fn common_pool(&self) -> Option<&PoolConfig> {
        self.pools.iter().find(|pool| !pool.selects())
    }

    /// Returns the settings of all workers that no `[[pool]]` names, which are added if there are none.
    pub fn common_pool_mut(&mut self) -> &mut PoolConfig {
        let at = self.pools.iter().position(|pool| !pool.selects()).unwrap_or(self.pools.len());
        if at == self.pools.len() {
            self.pools.push(PoolConfig::default());
        }
        &mut self.pools[at]
    }

    /// Returns the size of a cell in bytes.
    pub fn cell(&self) -> usize {
        let default = if self.mode == Mode::Cmts { bywash_docsis::instance::CELL } else { 2048 };
        self.common_pool().and_then(|pool| pool.cell.set()).copied().unwrap_or(default)
    }

    /// Returns the number of buffers set aside for pools that a reload creates.
    pub fn reserve(&self) -> usize {
        self.common_pool().map_or(0, |pool| pool.reserve)
    }

    /// Returns the page size of the buffer memory.
    pub fn pages(&self) -> Pages {
        self.common_pool().map(|pool| pool.pages).unwrap_or_default()
    }

    /// Returns true if a cell can hold several packets.
    pub fn packed(&self) -> bool {
        self.pools.iter().any(PoolConfig::packed)
    }

    /// Returns the path of a key of a pool's settings, as in error messages: `pool.kind`, or `pool.1.kind` if there are
    /// several.
    pub fn pool_path(&self, settings: usize, key: &str) -> String {
        let table = if self.pools.len() == 1 { "pool".into() } else { format!("pool.{settings}") };
        if key.is_empty() { table } else { format!("{table}.{key}") }
    }

    /// Returns the path of the key for the size of the arena's cells.
    pub(crate) fn cell_path(&self) -> String {
        self.pool_path(self.pools.iter().position(|pool| !pool.selects()).unwrap_or_default(), "cell")
    }

    /// Returns the pools of `workers` workers, by their first worker.
    ///
    /// # Errors
    /// A worker belongs to no pool or to two, or a `[[pool]]` names one that does not exist.
    pub fn pool_plans(&self, workers: usize) -> Result<Vec<PoolPlan>, ConfigErrors> {
        let plans = self.distribute_pools(workers);
        plans.map_err(|problem| ConfigErrors::new(None, Default::default(), vec![*problem]))
    }

    pub(crate) fn distribute_pools(&self, workers: usize) -> Result<Vec<PoolPlan>, Box<Problem>> {
        let common = self.pools.iter().position(|pool| !pool.selects());
        let mut of: Vec<Vec<usize>> = vec![vec![]; self.pools.len()];
        for worker in 0..workers {
            let mut named =
                (0..self.pools.len()).filter(|&at| self.pools[at].selects() && self.pools[at].names(worker));
            let first = named.next();
            if let (Some(first), Some(second)) = (first, named.next()) {
                let what = format!("worker {worker} belongs to two pools");
                let problem = Problem::at(self.pool_path(second, ""), what, "expected other workers");
                return Err(problem.other(self.pool_path(first, ""), "the first").into());
            }
            let Some(at) = first.or(common) else {
                let help = "a [[pool]] without `workers`, `group` and `side` applies to all other workers";
                let problem = Problem::at("pool", format!("worker {worker} belongs to no pool"), "");
                return Err(problem.help(help).into());
            };
            of[at].push(worker);
        }
        for (at, pool) in self.pools.iter().enumerate() {
            let high = pool.workers.iter().flatten().find(|worker| **worker >= workers);
            if let Some(worker) = high {
                let what = format!("unknown worker {worker}");
                let problem =
                    Problem::at(self.pool_path(at, "workers"), what, format!("expected 0 to {}", workers - 1));
                return Err(problem.into());
            }
            if pool.selects() && of[at].is_empty() {
                let expected = "`workers`, `group` and `side` must all match at least one";
                return Err(Problem::at(self.pool_path(at, ""), "no worker has this pool", expected).into());
            }
        }
        let mut plans: Vec<PoolPlan> = vec![];
        for (settings, of) in of.into_iter().enumerate() {
            let all = of.len() == workers;
            for (name, workers) in self.pools[settings].pools(of, all) {
                if let Some(other) = plans.iter().find(|plan| plan.name == name) {
                    let problem = Problem::at(
                        self.pool_path(settings, "name"),
                        format!("two pools are named {name}"),
                        "expected another name",
                    );
                    return Err(problem.other(self.pool_path(other.settings, "name"), "the first").into());
                }
                plans.push(PoolPlan { name, settings, workers });
            }
        }
        plans.sort_by_key(|plan| plan.workers[0]);
        Ok(plans)
    }
}

/// Appends the errors of pools that do not depend on the number of workers.
pub fn check(config: &Config, problems: &mut Vec<Problem>) {
    let default = PoolConfig::default();
    let mut common: Option<usize> = None;
    for (at, pool) in config.pools.iter().enumerate() {
        let path = |key: &str| config.pool_path(at, key);
        if pool.selects() {
            let set = [pool.reserve != default.reserve, pool.cell != default.cell, pool.pages != default.pages];
            for (key, _) in OF_ARENA.iter().zip(set).filter(|(_, set)| *set) {
                let what = format!("`{key}` applies to all pools");
                let expected = "only in the [[pool]] without `workers`, `group` and `side`";
                problems.push(Problem::at(path(key), what, expected));
            }
        } else if let Some(first) = common.replace(at) {
            let what = "two pools apply to all other workers";
            let expected = "expected `workers`, `group` or `side`";
            problems.push(Problem::at(path(""), what, expected).other(config.pool_path(first, ""), "the first"));
        }
        let cmts = config.mode == Mode::Cmts;
        for (key, _) in [("group", pool.group.is_some()), ("side", pool.side.is_some())].iter().filter(|(_, set)| *set)
        {
            if !cmts {
                let what = format!("`{key}` is not allowed with mode = \"{}\"", config.mode.name());
                problems.push(Problem::at(path(key), what, "expected `workers`"));
            }
        }
        if let Some(group) = pool.group.filter(|&group| cmts && group > config.groups.len()) {
            let what = format!("unknown group {group}");
            problems.push(Problem::at(path("group"), what, format!("expected 1 to {}", config.groups.len())));
        }
        sizes(config, at, problems);
    }
    if let (Some(packed), Some(other)) =
        (config.pools.iter().position(PoolConfig::packed), config.pools.iter().position(|pool| !pool.packed()))
    {
        let what = "pools of kind typewriter need an arena to themselves";
        let problem = Problem::at(config.pool_path(packed, "kind"), what, "expected all pools of this kind, or none");
        problems.push(problem.other(config.pool_path(other, "kind"), "another kind"));
    }
}

/// Appends the errors in the sizes of one entry.
fn sizes(config: &Config, at: usize, problems: &mut Vec<Problem>) {
    let pool = &config.pools[at];
    let path = |key: &str| config.pool_path(at, key);
    let chosen = pool.kind.set().is_none();
    if pool.blocks() && !chosen && pool.cache_frames() > 0 {
        let what = "a pool with blocks cannot have a cache: it would break the order of addresses within a block";
        problems.push(Problem::at(path("cache"), what, "expected 0 or \"auto\"").other(path("kind"), "the pool"));
    } else if let Some(&frames) = pool.frames.set()
        && pool.blocks()
        && pool.block.is_power_of_two()
        && (frames % pool.block != 0 || frames < 2 * pool.block)
    {
        let what = format!("{frames} buffers are not two or more whole blocks of {} buffers", pool.block);
        let more = frames.next_multiple_of(pool.block).max(2 * pool.block);
        let expected = format!("expected {more}, or another multiple of {}", pool.block);
        problems.push(Problem::at(path("frames"), what, expected).other(path("block"), "the block"));
    }
    if let Some(&frames) = pool.frames.set()
        && (chosen || !pool.blocks())
        && pool.cache_frames() > frames / 2
    {
        let what = format!("a cache of {} is more than half of a pool of {frames} buffers", pool.cache_frames());
        let expected = format!("expected at most {}", frames / 2);
        problems.push(Problem::at(path("cache"), what, expected).other(path("frames"), "the pool"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Draft;

    const PORT: &str = "[[port]]\ninterface = \"eth0\"\nqueues = [0, 1, 2]\n[workers]\ncount = 3\n";
    const CMTS: &str = "mode = \"cmts\"\n\
        [[port]]\nkind = \"null\"\nname = \"a\"\n[[port]]\nkind = \"null\"\nname = \"b\"\n\
        [[port]]\nkind = \"null\"\nname = \"c\"\n[[port]]\nkind = \"null\"\nname = \"d\"\n\
        [[group]]\ninput = \"a\"\noutput = \"b\"\n[[group]]\ninput = \"c\"\noutput = \"d\"\n";

    fn read(text: &str) -> Result<Config, Box<Problem>> {
        Draft::text("t.toml", text.into()).finish(None).map_err(|errors| {
            assert_eq!(errors.problems().len(), 1, "{errors}");
            Box::new(errors.problems()[0].clone())
        })
    }

    /// Returns the name, kind and workers of each pool.
    fn pools(text: &str, workers: usize) -> Vec<(String, String, Vec<usize>)> {
        let config = read(text).unwrap_or_else(|why| panic!("{text}: {why:?}"));
        let plans = config.pool_plans(workers).unwrap();
        let shown =
            |plan: PoolPlan| (plan.name, config.pools[plan.settings].kind.set().unwrap().to_string(), plan.workers);
        plans.into_iter().map(shown).collect()
    }

    fn row(name: &str, kind: &str, workers: &[usize]) -> (String, String, Vec<usize>) {
        (name.into(), kind.into(), workers.into())
    }

    #[test]
    fn every_worker_has_the_pool_that_names_it() {
        let own = |n: usize| row(&format!("worker{n}"), "stack", &[n]);
        assert_eq!(pools(PORT, 3), [own(0), own(1), own(2)]);
        assert_eq!(pools(&format!("{PORT}[pool]\nkind = \"sdb\"\n"), 3), [row("shared", "sdb", &[0, 1, 2])]);
        let text = format!("{PORT}[[pool]]\nworkers = [1]\nkind = \"ring\"\nname = \"r\"\n[[pool]]\n");
        assert_eq!(pools(&text, 3), [own(0), row("r", "ring", &[1]), own(2)]);
        let text = format!("{PORT}[[pool]]\nname = \"x\"\n[[pool]]\nworkers = [0, 2]\nkind = \"sdb\"\n");
        assert_eq!(pools(&text, 3), [row("shared0-2", "sdb", &[0, 2]), row("x", "stack", &[1])]);
        let text = format!("{PORT}[[pool]]\nname = \"x\"\n[[pool]]\nworkers = [1]\n");
        assert_eq!(pools(&text, 3), [row("x-0", "stack", &[0]), own(1), row("x-2", "stack", &[2])]);

        let text = format!("{CMTS}[[pool]]\ngroup = 2\nkind = \"ring\"\n[[pool]]\ngroup = 1\n");
        let ring = |n: usize| row(&format!("worker{n}"), "ring", &[n]);
        assert_eq!(pools(&text, 4), [own(0), own(1), ring(2), ring(3)]);
        let text = format!("{CMTS}[[pool]]\nside = \"lower\"\nkind = \"ring\"\n[[pool]]\n");
        assert_eq!(pools(&text, 4), [own(0), ring(1), own(2), ring(3)]);
        let text = format!("{CMTS}[[pool]]\ngroup = 2\nside = \"upper\"\nkind = \"ring\"\n[[pool]]\n");
        assert_eq!(pools(&text, 4), [own(0), own(1), ring(2), own(3)]);
    }

    #[test]
    fn sizes_are_those_of_the_entry() {
        let text = format!("{PORT}[[pool]]\nworkers = [1]\nkind = \"ring\"\nframes = 10_000\n[[pool]]\ncell = 4096\n");
        let config = read(&text).unwrap();
        let plan = config.plan(&[vec![0, 1, 2]], &[]).unwrap();
        let frames: Vec<_> = plan.pools.iter().map(|pool| plan.frames(pool)).collect();
        assert_eq!((frames, config.cell()), (vec![8192 + 1024, 10_000, 8192 + 1024], 4096));
        let small = read(&text.replace("10_000", "8447")).unwrap_err();
        assert_eq!((small.path.as_str(), small.expected.as_str()), ("pool.0.frames", "expected at least 8448"));
    }

    #[test]
    fn what_is_wrong_names_the_entry() {
        let second = "[[pool]]\n[[pool]]\n";
        for (text, path, what) in [
            (format!("{PORT}{second}"), "pool.1", "two pools apply to all other workers"),
            (format!("{PORT}{second}workers = [1]\ncell = 4096\n"), "pool.1.cell", "`cell` applies to all pools"),
            (format!("{PORT}{second}workers = [3]\n"), "pool.1.workers", "unknown worker 3"),
            (format!("{PORT}{second}group = 1\n"), "pool.1.group", "`group` is not allowed with mode = \"router\""),
            (format!("{PORT}[pool]\nworkers = [0]\n"), "pool", "worker 1 belongs to no pool"),
            (
                format!("{PORT}[[pool]]\n[[pool]]\nworkers = [1]\n[[pool]]\nworkers = [0, 1]\n"),
                "pool.2",
                "worker 1 belongs to two pools",
            ),
            (
                format!("{PORT}{second}workers = [1]\nname = \"worker0\"\n"),
                "pool.1.name",
                "two pools are named worker0",
            ),
            (
                format!("{PORT}{second}workers = [1]\nkind = \"tabm\"\ncache = 1\n"),
                "pool.1.cache",
                "a pool with blocks",
            ),
            (format!("{CMTS}{second}group = 3\n"), "pool.1.group", "unknown group 3"),
            (format!("{CMTS}{second}workers = [0]\ngroup = 2\n"), "pool.1", "no worker has this pool"),
            (
                format!("{CMTS}{second}group = 1\nkind = \"typewriter\"\n"),
                "pool.1.kind",
                "pools of kind typewriter need an arena to themselves",
            ),
        ] {
            let wrong = read(&text).expect_err(&text);
            assert!(wrong.path == path && wrong.what.starts_with(what), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn several_pools_are_shown_as_a_file() {
        let text = format!(
            "{PORT}[[pool]]\nworkers = [1]\nkind = \"ring\"\ncpu = 0\n[[pool]]\nreserve = 64\npages = \"4k\"\n"
        );
        let config = read(&text).unwrap();
        let shown = toml::to_string(&config).unwrap();
        assert_eq!(read(&shown).as_ref(), Ok(&config), "{shown}");
        assert_eq!(shown.matches("reserve").count(), 1, "{shown}");
        let json = serde_json::to_value(&config).unwrap();
        let validator = jsonschema::draft202012::new(&crate::schema()).unwrap();
        assert!(validator.is_valid(&json), "{json}");
        // A single pool is shown as a table, in whichever form it was written.
        let one = read(&format!("{PORT}[[pool]]\nkind = \"ring\"\n")).unwrap();
        assert_eq!(Ok(&one), read(&format!("{PORT}[pool]\nkind = \"ring\"\n")).as_ref());
        assert!(toml::to_string(&one).unwrap().contains("[pool]\n"));
    }

    #[test]
    fn options_are_for_all_pools() {
        let mut draft = Draft::text("t.toml", format!("{PORT}[[pool]]\nworkers = [1]\nkind = \"ring\"\n[[pool]]\n"));
        draft.set_pools("kind", |pool| pool.kind = Auto::Set(PoolKind::Tabm));
        let config = draft.finish(None).unwrap();
        assert!(config.pools.iter().all(|pool| pool.kind == Auto::Set(PoolKind::Tabm)));
    }

    /// A pool whose kind is chosen is large enough for each.
    #[test]
    fn the_size_does_not_depend_on_the_kind_that_is_chosen() {
        let config = read(&format!("{PORT}[pool]\nkind = \"auto\"\nblock = 4096\n")).unwrap();
        let plan = config.plan(&[vec![0, 1, 2]], &[]).unwrap();
        // The rings, the cache of a ring and 1024, in whole blocks, and two blocks more.
        assert_eq!((plan.workers[0].frames, plan.pools.len()), (12_288 + 8192, 3));
        let of = |kind| config.pools[0].pool("x", kind, 20_480);
        assert_eq!([PoolKind::Stack, PoolKind::Tabm, PoolKind::Ring].map(|kind| of(kind).cache), [0, 0, 256]);
        let auto = |text: &str| read(&format!("{PORT}[pool]\nkind = \"auto\"\n{text}"));
        assert_eq!(auto("frames = 20_000\n").unwrap_err().path, "pool.frames", "no whole blocks");
        assert_eq!(auto("frames = 15_360\ncache = 7680\n").unwrap_err().path, "pool.frames", "too few");
        assert_eq!(auto("cache = 64\n").unwrap().pools[0].pool("x", PoolKind::Tabm, 4096).cache, 0);
    }
}
