//! Asks logs for their state. Many are asked at once, each with its own deadline, so that one without an answer does not delay the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::{Env, Tick};

use crate::logs::{Known, Logs};

/// How many logs are asked at the same time. Too small: the status of many logs takes long. Too large: it occupies the node's thread.
const AT_A_TIME: usize = 64;
/// How long one log may take to report its chain, and as long again to report its tail.
const ANSWER: Duration = Duration::from_secs(1);
/// After this long, no further log is asked.
const ALL_WITHIN: Duration = Duration::from_secs(8);

/// Why there is no fresh answer from a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Its chain could not be read from its register.
    Chain,
    /// Its tail could not be determined.
    Tail,
    /// It was not asked, because too many others did not answer.
    NotAsked,
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NoAnswer::Chain => "its chain was not read within 1 s: no majority of the registers answers",
            NoAnswer::Tail => "its tail was not found within 1 s: appends may wait, too",
            NoAnswer::NotAsked => "it was not asked: too many other logs did not answer within 8 s",
        })
    }
}

/// The state of a log, and whether it is fresh.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// What is known about the log; None if this is only that it exists.
    pub known: Option<Known>,
    /// Why the state is not fresh; None if it is.
    pub silent: Option<NoAnswer>,
}

type Answers = Arc<Mutex<BTreeMap<String, Answer>>>;

/// Reads the chains and tails of these logs. Takes at most 10 s.
pub async fn ask_all(env: &Env, logs: &Logs, names: Vec<String>) -> BTreeMap<String, Answer> {
    let until = env.now().after(ALL_WITHIN);
    let answers = Answers::default();
    let left: Arc<Mutex<VecDeque<String>>> = Arc::new(Mutex::new(names.into()));
    let waiting = left.lock().unwrap_or_else(PoisonError::into_inner).len();
    let mut workers = Vec::new();
    for _ in 0..AT_A_TIME.min(waiting) {
        let (env2, logs, left, answers) = (env.clone(), logs.clone(), left.clone(), answers.clone());
        workers.push(env.launch("ask_logs", async move {
            loop {
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some(name) = next else { return };
                let answer = ask(&env2, &logs, &name, until).await;
                answers.lock().unwrap_or_else(PoisonError::into_inner).insert(name, answer);
            }
        }));
    }
    for worker in workers {
        // An error means that the node is stopping. Then nobody receives this answer.
        let _ = worker.await;
    }
    std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn ask(env: &Env, logs: &Logs, name: &str, until: Tick) -> Answer {
    let not_asked = Answer { known: None, silent: Some(NoAnswer::NotAsked) };
    if env.now() >= until {
        return not_asked;
    }
    let Ok(log) = logs.open(name) else { return not_asked };
    let fresh_chain = matches!(env.within(ANSWER, log.refresh()).await, Ok(Ok(Ok(_))));
    let silent = if !fresh_chain {
        Some(NoAnswer::Chain)
    } else {
        let fresh_tail = matches!(env.within(ANSWER, log.check_tail()).await, Ok(Ok(Ok(_))));
        (!fresh_tail).then_some(NoAnswer::Tail)
    };
    Answer { known: Known::of(&log), silent }
}
