//! A stepped thread sees instructions where it reads the time-stamp counter.

use bywash_measure::step::Stepper;
use bywash_sync::clock::tsc;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};

#[inline(never)]
fn multiply(times: u64) -> u64 {
    (0..times).fold(1, |product: u64, _| std::hint::black_box(product.wrapping_mul(3)))
}

#[inline(never)]
fn measured(times: u64) -> u64 {
    let start = tsc();
    multiply(times);
    tsc() - start
}

/// Not a test: the program that the test below steps. Measures 100 and 200 multiplications again and again, and prints
/// the last measurements once there is a line of input.
#[test]
#[ignore = "a program for the other test"]
fn program() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    println!("\nthread {}", thread.file_name().unwrap().to_str().unwrap());
    let enough = Arc::new(AtomicBool::new(false));
    let asked = enough.clone();
    std::thread::spawn(move || asked.store(std::io::stdin().lines().next().is_some(), Ordering::Release));
    let mut last = [[0; 2]; 2];
    let mut at = 0;
    while !enough.load(Ordering::Acquire) {
        last[at % 2] = [measured(100), measured(200)];
        at += 1;
    }
    println!("\nlast {last:?}");
}

#[test]
fn ticks_become_instructions() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "program", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let thread = lines.iter().find_map(|line| line.strip_prefix("thread ").map(str::to_owned)).unwrap();
    let mut stepper = Stepper::attach(thread.parse().unwrap(), tsc).unwrap();
    stepper.step(10_000).unwrap();
    writeln!(child.stdin.take().unwrap()).unwrap();
    // The program is asked, and answers, while it is stepped, so that its last measurements are of that time.
    let last = loop {
        match lines.try_recv() {
            Ok(line) if line.starts_with("last ") => break line,
            Err(TryRecvError::Disconnected) => panic!("no measurements"),
            _ => stepper.step(1_000).unwrap(),
        }
    };
    drop(stepper);
    let last: Vec<[u64; 2]> = serde_json::from_str(&last["last ".len()..]).unwrap();
    assert!(child.wait().unwrap().success());
    let [short, long] = last[0];
    // The same number each time, and the same number for each multiplication.
    assert!(last.iter().all(|each| *each == [short, long]), "{last:?}");
    assert!(long > short && (long - short) % 100 == 0, "{last:?}");
    assert!(short < 100 * 10, "{last:?}");
}
