//! Stages of a worker: cycles measured, and instructions counted by stepping its thread.

use bywash_engine::{SAMPLE, WorkerCounters};
use bywash_measure::step::{StageSample, Stepper, instructions};
use bywash_sync::clock;
use clap::Args;
use serde::Serialize;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

/// Turns for which a worker is stepped.
const TURNS: u64 = 2 * SAMPLE;
/// Maximum time for which a worker is stepped.
const PATIENCE: Duration = Duration::from_secs(60);
/// Instructions after which the stepping process checks for the request to stop.
const CHUNK: u64 = 1000;

/// Figures of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub stage: String,
    /// Ticks of the time-stamp counter.
    pub cycles_per_packet: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions_per_packet: Option<f64>,
    /// Core clock cycles per instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpi: Option<f64>,
}

/// Returns the counters of a worker's stages.
pub fn sample(worker: &WorkerCounters) -> StageSample {
    let stages = worker.stages.iter().map(|stage| (stage.cycles.get(), stage.packets.get()));
    StageSample { turns: worker.turns.get(), stages: stages.collect() }
}

/// Returns the stages of a worker that was sampled before and after `packets` packets. If `step`, counts the
/// instructions of its thread, which takes some seconds.
pub fn between(
    worker: &WorkerCounters,
    before: &StageSample,
    after: &StageSample,
    packets: u64,
    step: bool,
) -> anyhow::Result<Vec<Stage>> {
    // While the worker runs as it did when it was measured.
    let core_cycles_per_tick = clock::core_cycles_per_tick();
    let counted = if step { count(worker)? } else { vec![None; worker.stages.len()] };
    let ticks = before.stages.iter().zip(&after.stages).map(|(before, after)| after.0 - before.0);
    let stages = worker.stages.iter().zip(ticks).zip(counted).map(|((stage, ticks), instructions)| {
        let cycles_per_packet = ticks as f64 / packets.max(1) as f64;
        Stage {
            stage: stage.name.to_owned(),
            cycles_per_packet,
            instructions_per_packet: instructions,
            cpi: instructions.filter(|n| *n > 0.0).map(|n| cycles_per_packet * core_cycles_per_tick / n),
        }
    });
    Ok(stages.collect())
}

/// Prints stages, one in a line.
pub fn print(stages: &[Stage]) {
    for Stage { stage, cycles_per_packet, instructions_per_packet, cpi } in stages {
        let counted = instructions_per_packet.zip(*cpi);
        let counted = counted.map(|(n, cpi)| format!("  {n:6.1} instructions/packet  CPI {cpi:.2}"));
        println!("  {stage:8} {cycles_per_packet:6.1} cycles/packet{}", counted.unwrap_or_default());
    }
}

/// Returns the instructions per packet of each stage. A thread cannot trace one of its own process, so that another
/// process steps the worker.
fn count(worker: &WorkerCounters) -> anyhow::Result<Vec<Option<f64>>> {
    let mut stepper = Command::new(std::env::current_exe()?)
        .args(["bench", "step", "--thread", &worker.thread.get().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (stdin, stdout) = (stepper.stdin.take(), stepper.stdout.take());
    let mut heard = stdout.into_iter().flat_map(|out| BufReader::new(out).lines());
    // It has written the reason if it ends early.
    let mut hear = || heard.next().transpose()?.ok_or_else(|| anyhow::anyhow!("instructions were not counted"));
    hear()?;
    let before = sample(worker);
    let request = || stdin.as_ref().map(|mut stdin| stdin.write_all(b"\n")).transpose();
    request()?;
    let start = Instant::now();
    while worker.turns.get() < before.turns + TURNS && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    request()?;
    hear()?;
    let after = sample(worker);
    drop(stdin);
    stepper.wait()?;
    Ok(instructions(&before, &after, SAMPLE))
}

/// `bywash bench step`: a process that steps a worker of another process. Reports when the thread has stopped; steps it
/// between two lines of input, and reports again; lets it run on at the end of its input.
#[derive(Debug, Args)]
pub struct StepArgs {
    /// Thread to step
    #[arg(long)]
    pub thread: i32,
}

/// Runs `bywash bench step`.
pub fn step(args: &StepArgs) -> anyhow::Result<()> {
    let mut stepper = Stepper::attach(args.thread, clock::tsc)?;
    println!("stopped");
    let (ask, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lines();
        lines.try_for_each(|line| line.map_err(drop).and_then(|_| ask.send(()).map_err(drop)))
    });
    asked.recv()?;
    while asked.try_recv() == Err(TryRecvError::Empty) {
        stepper.step(CHUNK)?;
    }
    println!("stepped");
    // Until the end of the input.
    asked.iter().for_each(drop);
    Ok(())
}
