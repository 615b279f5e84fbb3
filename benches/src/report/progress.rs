//! Shows the progress of `bench` and `tune` as a bar on stderr, if stderr is a terminal.
use std::fmt::Display;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress bar of a run over a known number of cases (ops with tensor sizes). If stderr is not a
/// terminal, the bar is invisible. The method `print` then still prints its line.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Makes a bar for `cases` cases on stderr.
    pub fn new(cases: usize) -> Self {
        Self::on(ProgressDrawTarget::stderr(), cases)
    }

    fn on(target: ProgressDrawTarget, cases: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(cases as u64), target);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
        // indicatif rejects an invalid template, and the bar would then have indicatif's default style. A
        // unit test checks that this template is valid.
        Self(style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style)))
    }

    /// Shows `what` next to the bar. `what` is the name of the case (op with a tensor size) that runs now, or
    /// of one of its launch configurations.
    pub fn show(&self, what: impl Display) {
        self.0.set_message(what.to_string());
    }

    /// Counts one finished case.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Prints a line on stdout, above the bar.
    pub fn print(&self, line: impl Display) {
        self.0.suspend(|| println!("{line}"));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal of 80 columns that records the output.
    #[derive(Clone, Debug, Default)]
    struct Terminal(Arc<Mutex<String>>);

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().expect("not poisoned").push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_bar_shows_how_many_cases_are_done_and_which_is_measured() {
        let terminal = Terminal::default();
        let progress = Progress::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())), 30);
        for _ in 0..7 {
            progress.step();
        }
        progress.show("rope/4608x3072");
        progress.0.force_draw();
        let drawn = terminal.0.lock().expect("not poisoned").clone();
        assert!(drawn.contains("7/30") && drawn.contains("rope/4608x3072"), "{drawn}");
    }
}
