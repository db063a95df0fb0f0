//! Traces of what policies decide (`policies/*.txt`), and a policy of a real node.
//!
//! A paragraph is a look. Its commands set what the node observes, and stay until they are set anew; then the decision follows. Commands:
//!
//! | command | what it sets |
//! | --- | --- |
//! | `policy NAME=VALUE ...` | the policy, by names of fields; `least` of a placement, `cold_age_ms` and `hot_bytes` of the cold |
//! | `now MS` | the time |
//! | `sealed START..STOP [BYTES or cold or cold:BYTES]` | another sealed segment; the Loglet has the number of its start |
//! | `active START..TAIL [BYTES]` | the active segment |
//! | `standing converged, elsewhere or other` | where it is |
//! | `holders COUNT` | how many nodes hold its entries |
//! | `replicas ID ...` | the replicas: `ID` lives, `-ID` does not, `ID!` may not hold entries |
//! | `mark STOP MS` | when segments up to a position were sealed |
//! | `trimmed POSITION` | what a trim has left: sealed segments below are gone |
//! | `done KIND`, `failed KIND`, `begun KIND` | an action of this time |
//! | `database` | the log is the database's |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_client::{Reason, proto};
use atoll_contract::{ClientId, LogPos, LogletId, LogletSpec, OpId, ReadFrom};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Incarnation, NodeId, traces};
use atoll_door::backend::PolicyBackend;
use atoll_log::virtual_log::LogRecord;
use atoll_node::log_policy::decide::{Facts, Replica, SegmentFact, Standing, Watch, decide};
use atoll_node::log_policy::declared::{
    Action, Book, Cold, Kind, LogPolicy, Outcome, Placement, WantedLoglet,
};
use atoll_node::{NodeConfig, RunningNode, mutants, start};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies")
}

#[test]
fn decisions_are_as_the_traces_say() {
    traces::check(&folder(), player);
}

#[test]
fn known_bugs_of_decisions_show() {
    for bug in [mutants::POLICY_TRIMS_ONE_MORE, mutants::POLICY_FLAPS] {
        set_mutant(bug);
        let shows = traces::differ(&folder(), player);
        set_mutant(Mutant::NONE);
        assert!(shows, "no trace shows {bug:?}");
    }
}

/// What the commands have set.
struct Scene {
    policy: LogPolicy,
    facts: Facts,
    book: Book,
    watch: Watch,
}

fn segment(range: &str, weight: Option<&str>) -> SegmentFact {
    let (start, stop) = range.split_once("..").unwrap();
    let (start, stop) = (LogPos(start.parse().unwrap()), LogPos(stop.parse().unwrap()));
    let is_cold = weight.is_some_and(|weight| weight.starts_with("cold"));
    let bytes = weight.map(|weight| weight.trim_start_matches("cold").trim_start_matches(':'));
    let bytes = bytes.and_then(|bytes| bytes.parse().ok());
    SegmentFact { start, stop, loglet: LogletId(start.0.into()), is_cold, bytes }
}

fn policy(words: &[&str]) -> LogPolicy {
    let set: BTreeMap<&str, u64> = words
        .iter()
        .map(|word| word.split_once('=').unwrap())
        .map(|(name, n)| (name, n.parse().unwrap()))
        .collect();
    let to = |kind: &str| WantedLoglet {
        kind: kind.to_owned(),
        places: BTreeMap::new(),
        options: BTreeMap::new(),
    };
    let get = |name: &str| set.get(name).copied();
    let (cold_age, hot) = (get("cold_age_ms"), get("hot_bytes"));
    LogPolicy {
        placement: get("least").map(|least| Placement {
            kind: "servers".to_owned(),
            least_replicas: least as u32,
            elsewhere: (least > 0).then(|| to("store")),
            settle_ms: get("settle_ms").unwrap(),
            return_ms: get("return_ms").unwrap(),
            rest_ms: get("rest_ms").unwrap(),
        }),
        cold: (cold_age.is_some() || hot.is_some()).then(|| Cold {
            to: to("store"),
            age_ms: cold_age,
            hot_bytes: hot,
        }),
        keep_age_ms: get("keep_age_ms"),
        keep_bytes: get("keep_bytes"),
        segment_age_ms: get("segment_age_ms"),
        segment_bytes: get("segment_bytes"),
    }
}

impl Scene {
    fn set(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["policy", ref rest @ ..] => self.policy = policy(rest),
            ["now", ms] => self.facts.now_ms = ms.parse().unwrap(),
            ["sealed", range, ref rest @ ..] => self.facts.sealed.push(segment(range, rest.first().copied())),
            ["active", range, ref rest @ ..] => self.facts.active = segment(range, rest.first().copied()),
            ["standing", "converged"] => self.facts.standing = Standing::Converged,
            ["standing", "elsewhere"] => self.facts.standing = Standing::Elsewhere,
            ["standing", "other"] => self.facts.standing = Standing::Other,
            ["holders", count] => self.facts.holders = count.parse().unwrap(),
            ["replicas", ref rest @ ..] => {
                let replica = |word: &&str| {
                    let id = word.trim_start_matches('-').trim_end_matches('!').parse().unwrap();
                    Replica { node: NodeId(id), is_live: !word.starts_with('-'), holds: !word.ends_with('!') }
                };
                self.facts.replicas = rest.iter().map(replica).collect();
            }
            ["mark", stop, ms] => {
                assert!(self.book.mark(LogPos(stop.parse().unwrap()), ms.parse().unwrap(), self.facts.trim));
            }
            ["trimmed", to] => {
                self.facts.trim = LogPos(to.parse().unwrap());
                self.facts.sealed.retain(|segment| segment.stop > self.facts.trim);
            }
            ["done", kind] => self.act(kind, Outcome::Done {}),
            ["begun", kind] => self.act(kind, Outcome::Begun {}),
            ["failed", kind] => self.act(kind, Outcome::Failed { why: "no".to_owned() }),
            ["database"] => self.facts.is_database = true,
            _ => panic!("no command is called {command:?}"),
        }
    }

    fn act(&mut self, kind: &str, outcome: Outcome) {
        let kinds = [Kind::Place {}, Kind::Trim {}, Kind::Seal {}, Kind::Cool {}];
        let kind = kinds.into_iter().find(|known| known.word() == kind).unwrap();
        self.book.begin(Action {
            at_ms: self.facts.now_ms,
            node: NodeId(1),
            life: Incarnation(1),
            kind,
            what: "something".to_owned(),
            reason: String::new(),
            attempts: 1,
            outcome,
        });
    }
}

fn player() -> impl FnMut(&[&str]) -> Vec<String> {
    let mut scene = Scene {
        policy: LogPolicy::NOTHING,
        facts: Facts {
            now_ms: 0,
            is_database: false,
            trim: LogPos::ZERO,
            sealed: Vec::new(),
            active: segment("0..0", None),
            standing: Standing::Converged,
            holders: 0,
            replicas: Vec::new(),
        },
        book: Book::of(LogPolicy::NOTHING),
        watch: Watch::default(),
    };
    move |commands| {
        commands.iter().for_each(|command| scene.set(command));
        let decision = decide(&scene.policy, &scene.facts, &scene.book, &mut scene.watch);
        let steps = decision
            .steps
            .iter()
            .map(|step| format!("{}: {}; because {}", step.kind().word(), step.what, step.reason));
        let waits = decision.waits.iter().map(|wait| format!("waits: {wait}"));
        steps.chain(waits).collect()
    }
}

/// How long a node may take to do what a policy demands.
const WITHIN: Duration = Duration::from_secs(60);
const LOG: &str = "kept";

async fn append(node: &RunningNode, first: u64, count: u64) {
    let log = node.logs().open(LOG).unwrap();
    let record = |seq| LogRecord {
        op: OpId { client: ClientId(7), seq },
        floor: None,
        payload: vec![b'x'; 1_000].into(),
    };
    for seq in first..first + count {
        log.submit(vec![record(seq)]).unwrap().await.unwrap().unwrap();
    }
}

/// Waits until the reply says so.
async fn until(
    node: &RunningNode,
    what: &str,
    is: impl Fn(&proto::PolicyReply) -> bool,
) -> proto::PolicyReply {
    let began = Instant::now();
    loop {
        let reply = node.parts().log_policies.show(LOG.to_owned()).await.unwrap();
        if is(&reply) {
            return reply;
        }
        assert!(began.elapsed() < WITHIN, "{what}: {reply:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn done(reply: &proto::PolicyReply, kind: &str) -> usize {
    reply.actions.iter().filter(|action| action.kind == kind && action.outcome == "done").count()
}

fn to_store(kind: &str, url: &str) -> Option<proto::ColdPolicy> {
    let spec = proto::LogletSpec {
        kind: Some(kind.to_owned()),
        options: [("url".to_owned(), url.to_owned())].into(),
        ..proto::LogletSpec::default()
    };
    Some(proto::ColdPolicy { to: Some(spec), age_ms: None, hot_bytes: Some(40_000) })
}

/// Returns the kind that keeps its entries at a URL outside of the nodes.
async fn kind_of_stores(node: &RunningNode, url: &str) -> String {
    for provider in node.logs().registry().providers().filter(|provider| provider.roles().is_empty()) {
        let mut spec = LogletSpec::of(provider.kind());
        spec.options.insert("url".to_owned(), url.to_owned());
        if provider.plan(&spec, None).await.is_ok() {
            return provider.kind().to_owned();
        }
    }
    panic!("no kind takes {url}");
}

#[tokio::test]
async fn a_node_seals_moves_and_trims_as_declared_and_the_rest_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::alone(root.path().join("data"));
    config.timings.patrol_every = Duration::from_millis(50);
    let node = start(config).unwrap();
    node.joined().await.unwrap();
    let policies = &node.parts().log_policies;
    let url = format!("file://{}", root.path().join("store").display());
    let kind = kind_of_stores(&node, &url).await;
    let policy = proto::LogPolicy {
        cold: to_store(&kind, &url),
        keep_bytes: Some(100_000),
        segment_bytes: Some(20_000),
        ..proto::LogPolicy::default()
    };
    let missing = policies.set(LOG.to_owned(), policy.clone()).await.unwrap_err();
    assert_eq!(missing.failure.reason, Reason::NoSuchLog);
    node.logs().create(LOG, Default::default()).unwrap().await.unwrap().unwrap();
    for (bad, words) in [
        (proto::LogPolicy::default(), "declares nothing"),
        (proto::LogPolicy { cold: to_store(&kind, "ftp://x"), ..policy.clone() }, "url"),
        (proto::LogPolicy { keep_bytes: Some(30_000), ..policy.clone() }, "at most the size of what is kept"),
    ] {
        let refused = policies.set(LOG.to_owned(), bad).await.unwrap_err().failure;
        assert!(refused.reason == Reason::Invalid && refused.message.contains(words), "{refused:?}");
    }
    assert_eq!(policies.show(LOG.to_owned()).await.unwrap().policy, None, "nothing was replicated");
    append(&node, 1, 30).await;
    let run = policies.dry_run(LOG.to_owned(), Some(policy.clone())).await.unwrap();
    assert_eq!(run.steps.iter().map(|step| step.kind.as_str()).collect::<Vec<_>>(), ["seal"], "{run:?}");
    assert_eq!(policies.show(LOG.to_owned()).await.unwrap().policy, None, "a dry run writes nothing");
    assert!(policies.dry_run(LOG.to_owned(), None).await.is_err(), "there is none yet");
    assert!(policies.set(LOG.to_owned(), policy.clone()).await.unwrap().policy.is_some());
    let mut next = 31;
    for segments in 1..=6 {
        until(&node, "another segment is sealed", |reply| done(reply, "seal") >= segments).await;
        append(&node, next, 25).await;
        next += 25;
    }
    let reply = until(&node, "segments are moved and trimmed", |reply| {
        done(reply, "trim") > 0 && done(reply, "cool") > 0
    })
    .await;
    assert!(reply.actions.iter().all(|action| !action.reason.is_empty()), "{reply:?}");
    let log = node.logs().open(LOG).unwrap();
    let (trim, tail) =
        (log.refresh().await.unwrap().unwrap().chain.trim(), log.check_tail().await.unwrap().unwrap());
    assert!(trim > LogPos::ZERO && tail.since(trim) * 1_020 >= 100_000, "{trim} to {tail}");
    let mut at = trim;
    while at < tail {
        let read = log.read(at..tail, 1 << 20, ReadFrom::Anywhere).await.unwrap().unwrap();
        assert!(read.records().all(|(_, entry)| entry.payload.len() == 1_000));
        at = read.next();
    }
    // A log that is created anew has no policy.
    policies.clear(LOG.to_owned()).await.unwrap();
    assert_eq!(policies.show(LOG.to_owned()).await.unwrap().policy, None);
    node.shutdown().await;
}
