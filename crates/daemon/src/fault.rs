//! Panics that tests ask for, in builds with debug assertions only: `BYWASH_FAULT_LENGTH=777` makes a worker panic when
//! it receives a frame of 777 bytes.

use bywash_engine::{App, Context, PortId};
use bywash_frame::Batch;

/// Application that panics before it passes a burst with such a frame on.
struct Faulty {
    app: Box<dyn App>,
    length: usize,
}

/// Makes all applications panic as asked for, if at all.
pub fn inject(apps: Vec<Box<dyn App>>) -> Vec<Box<dyn App>> {
    let length = std::env::var("BYWASH_FAULT_LENGTH").ok().and_then(|text| text.parse().ok());
    let Some(length) = length else { return apps };
    tracing::warn!("a test asks for panics: workers fail when they receive a frame of {length} bytes");
    apps.into_iter().map(|app| Box::new(Faulty { app, length }) as Box<dyn App>).collect()
}

impl App for Faulty {
    fn stages(&self) -> &'static [&'static str] {
        self.app.stages()
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let asked = batch.as_slice().iter().any(|frame| frame.len() == self.length);
        assert!(!asked, "a test asked for it");
        self.app.process(cx, from, batch);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.app.turn(cx)
    }

    fn held(&self) -> usize {
        self.app.held()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.app.close(cx);
    }

    fn recover(&mut self) -> bool {
        self.app.recover()
    }
}
