//! What operators do with policies.

use std::time::Duration;

use atoll_client::{Reason, proto};
use atoll_contract::{LogletSpec, PlanError};
use atoll_core::Ticket;
use atoll_door::DATABASE_LOG;
use atoll_door::backend::{Pending, PolicyBackend, Refusal};
use atoll_door::spec::loglet_spec;
use atoll_log::virtual_log::VirtualLog;

use super::decide::{Watch, decide};
use super::declared::{Action, Book, Cold, LogPolicy, Outcome, Placement, WantedLoglet};
use super::facts::{Scales, Unseen, observe, replicas};
use super::state::LogPolicies;
use crate::kept;
use crate::refusals::{log_refusal, open_refusal, reconfig_refusal};

/// How long a node tries a declared Loglet before it refuses the policy.
const TRY_FOR: Duration = Duration::from_secs(10);
/// The most looks of a dry run: each weighs some segments.
const LOOKS: usize = 16;

fn invalid(words: impl Into<String>, next: &str) -> Refusal {
    Refusal::no(Reason::Invalid, words, next)
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the Loglet that a policy names.
fn wanted(spec: proto::LogletSpec) -> Result<WantedLoglet, Refusal> {
    let LogletSpec { kind, places, options, .. } = loglet_spec(Some(spec))?;
    let next = "name the kind; `atoll chain extend --help` lists what else there is to say";
    let kind = kind.ok_or_else(|| invalid("a loglet of the policy has no kind", next))?;
    Ok(WantedLoglet { kind, places, options })
}

/// Returns the policy that a request declares. A converged Loglet has the kind `first`, unless another one is declared.
fn declared(policy: proto::LogPolicy, first: &str) -> Result<LogPolicy, Refusal> {
    let placement = |p: proto::PlacementPolicy| {
        Ok(Placement {
            kind: if p.kind.is_empty() { first.to_owned() } else { p.kind },
            least_replicas: p.least_replicas,
            elsewhere: p.elsewhere.map(wanted).transpose()?,
            settle_ms: p.settle_ms.unwrap_or(ms(Placement::SETTLE)),
            return_ms: p.return_ms.unwrap_or(ms(Placement::RETURN)),
            rest_ms: p.rest_ms.unwrap_or(ms(Placement::REST)),
        })
    };
    let cold = |c: proto::ColdPolicy| {
        Ok(Cold { to: wanted(c.to.unwrap_or_default())?, age_ms: c.age_ms, hot_bytes: c.hot_bytes })
    };
    Ok(LogPolicy {
        placement: policy.placement.map(placement).transpose()?,
        cold: policy.cold.map(cold).transpose()?,
        keep_age_ms: policy.keep_age_ms,
        keep_bytes: policy.keep_bytes,
        segment_age_ms: policy.segment_age_ms,
        segment_bytes: policy.segment_bytes,
    })
}

fn spec_of(wanted: &WantedLoglet) -> proto::LogletSpec {
    let place = |(role, nodes): (&String, &Vec<atoll_core::NodeId>)| proto::Place {
        role: role.clone(),
        nodes: nodes.iter().map(|node| node.0).collect(),
    };
    proto::LogletSpec {
        kind: Some(wanted.kind.clone()),
        places: wanted.places.iter().map(place).collect(),
        options: wanted.options.clone().into_iter().collect(),
        ..proto::LogletSpec::default()
    }
}

fn policy_of(policy: &LogPolicy) -> proto::LogPolicy {
    proto::LogPolicy {
        placement: policy.placement.as_ref().map(|p| proto::PlacementPolicy {
            kind: p.kind.clone(),
            least_replicas: p.least_replicas,
            elsewhere: p.elsewhere.as_ref().map(spec_of),
            settle_ms: Some(p.settle_ms),
            return_ms: Some(p.return_ms),
            rest_ms: Some(p.rest_ms),
        }),
        cold: policy.cold.as_ref().map(|c| proto::ColdPolicy {
            to: Some(spec_of(&c.to)),
            age_ms: c.age_ms,
            hot_bytes: c.hot_bytes,
        }),
        keep_age_ms: policy.keep_age_ms,
        keep_bytes: policy.keep_bytes,
        segment_age_ms: policy.seal_age_ms(),
        segment_bytes: policy.seal_bytes(),
    }
}

fn action_of(action: &Action) -> proto::PolicyAction {
    let (outcome, error) = match &action.outcome {
        Outcome::Begun {} => ("begun", String::new()),
        Outcome::Done {} => ("done", String::new()),
        Outcome::Failed { why } => ("failed", why.clone()),
        Outcome::Unknown { why } => ("unknown", why.clone()),
    };
    proto::PolicyAction {
        at_ms: action.at_ms,
        node: action.node.0,
        kind: action.kind.word().to_owned(),
        what: action.what.clone(),
        reason: action.reason.clone(),
        attempts: action.attempts,
        outcome: outcome.to_owned(),
        error,
    }
}

fn plan_refusal(error: PlanError) -> Refusal {
    reconfig_refusal(&error.into())
}

impl LogPolicies {
    /// Checks a policy for a log, and tries the Loglets that it names. Nothing is changed.
    async fn check(&self, log: &str, policy: &LogPolicy) -> Result<(), Refusal> {
        let count = replicas(&self.0.members).len();
        policy.check(log == DATABASE_LOG, count).map_err(|error| invalid(error.to_string(), ""))?;
        let registry = self.0.logs.registry();
        if let Some(placement) = &policy.placement {
            let provider = registry.provider(&placement.kind).map_err(plan_refusal)?;
            if provider.roles().iter().filter(|role| role.holds).count() != 1 {
                let words = format!("a converged loglet of kind {:?}", placement.kind);
                return Err(invalid(
                    words,
                    "allowed: a kind with one role that holds entries, such as native",
                ));
            }
        }
        if let Some(cold) = &policy.cold {
            let provider = registry.provider(&cold.to.kind).map_err(plan_refusal)?;
            if !provider.roles().is_empty() {
                let words =
                    format!("cold segments in loglets of kind {:?}, which are on nodes", cold.to.kind);
                return Err(invalid(words, "allowed: a kind outside of the nodes, such as object"));
            }
        }
        let elsewhere = policy.placement.iter().filter_map(|placement| placement.elsewhere.as_ref());
        for wanted in elsewhere.chain(policy.cold.iter().map(|cold| &cold.to)) {
            self.try_out(wanted).await?;
        }
        Ok(())
    }

    /// Plans a Loglet that a policy names, as an action would, and finds it again.
    async fn try_out(&self, wanted: &WantedLoglet) -> Result<(), Refusal> {
        let spec = wanted.spec();
        self.0.named.check(&spec).await?;
        let provider = self.0.logs.registry().provider(&wanted.kind).map_err(plan_refusal)?;
        let planned = self.0.env.within(TRY_FOR, provider.plan(&spec, None)).await;
        let config = match planned {
            Ok(config) => config.map_err(plan_refusal)?,
            Err(_) => {
                let words = format!("a loglet of kind {:?} could not be planned in time", wanted.kind);
                return Err(Refusal::no(Reason::Unavailable, words, "try again when what it needs answers"));
            }
        };
        if wanted.is(&**provider, &config) {
            return Ok(());
        }
        // The policy would take each Loglet of its own for another one, and move on again and again.
        let words = format!("a loglet of kind {:?} does not come out as it is declared", wanted.kind);
        Err(invalid(words, "allowed: options as `atoll chain show` shows them, and each node of a role once"))
    }

    async fn find(&self, log: &str) -> Result<Option<Book>, Refusal> {
        kept::read(&*self.register(log)).await.map_err(|error| error.refusal())
    }

    /// Returns a log that exists.
    async fn log(&self, name: &str) -> Result<std::sync::Arc<VirtualLog>, Refusal> {
        let log = self.0.logs.open(name).map_err(|error| open_refusal(&error))?;
        log.refresh().await.map_err(|_| Refusal::stopping())?.map_err(|error| log_refusal(&error))?;
        Ok(log)
    }

    fn reply(&self, log: String, book: Option<&Book>) -> proto::PolicyReply {
        proto::PolicyReply {
            log,
            policy: book.map(|book| policy_of(&book.policy)),
            actions: book.map(|book| book.actions.iter().map(action_of).collect()).unwrap_or_default(),
            node: self.0.env.node().0,
            acts: self.ranks_first(),
        }
    }

    async fn put(&self, log: &str, policy: LogPolicy) -> Result<Option<Book>, Refusal> {
        self.log(log).await?;
        self.check(log, &policy).await?;
        let book = self.change(log, |book| match book {
            Some(book) => Some(Book { policy: policy.clone(), ..book }),
            None => Some(Book::of(policy.clone())),
        });
        book.await.map_err(|error| error.refusal())
    }

    /// Declares the policy of a log, in place of an earlier one, for a program that embeds the node.
    pub fn declare(&self, log: String, policy: LogPolicy) -> Ticket<Result<(), Refusal>> {
        let me = self.clone();
        self.0.env.launch("policy.set", async move { me.put(&log, policy).await.map(drop) })
    }

    /// Ends the policy of a log.
    pub fn withdraw(&self, log: String) -> Ticket<Result<(), Refusal>> {
        let me = self.clone();
        let ended = async move { me.forget(&log).await.map_err(|error| error.refusal()) };
        self.0.env.launch("policy.clear", ended)
    }

    async fn try_run(
        &self,
        name: String,
        policy: Option<proto::LogPolicy>,
    ) -> Result<proto::DryRunReply, Refusal> {
        let log = self.log(&name).await?;
        let book = self.find(&name).await?;
        let mut book = match policy.map(|policy| declared(policy, self.0.logs.first_kind())).transpose()? {
            Some(policy) => {
                self.check(&name, &policy).await?;
                Book { policy: policy.clone(), ..book.unwrap_or_else(|| Book::of(policy)) }
            }
            None => book.ok_or_else(|| {
                let next = "say what it would declare, with the options of `atoll policy set`";
                Refusal::no(Reason::Refused, format!("the log {name} has no policy"), next)
            })?,
        };
        let Some(now_ms) = self.0.members.wall_ms() else { return Err(Refusal::stopping()) };
        let (env, mut scales) = (&self.0.env, Scales::default());
        let mut observed = observe(env, &self.0.members, &log, &book.policy, &mut scales, now_ms).await;
        for _ in 1..LOOKS {
            let is_weighed = |facts: &super::decide::Facts| facts.sealed.iter().all(|s| s.bytes.is_some());
            if !book.policy.weighs() || observed.as_ref().map_or(true, is_weighed) {
                break;
            }
            observed = observe(env, &self.0.members, &log, &book.policy, &mut scales, now_ms).await;
        }
        let facts = observed.map_err(|unseen| {
            let why = match unseen {
                Unseen::Silent(why) => why,
                Unseen::Deleted | Unseen::NoLog => "it is gone".to_owned(),
            };
            Refusal::no(Reason::Unavailable, format!("the log {name} does not answer: {why}"), "try again")
        })?;
        let mut unmarked = Vec::new();
        if book.sealed_by(facts.active.start).is_none() {
            book.mark(facts.active.start, now_ms, facts.trim);
            if facts.sealed.iter().any(|segment| book.sealed_by(segment.stop) == Some(now_ms)) {
                unmarked.push(
                    "ages of segments count from when the policy is declared, at the earliest".to_owned(),
                );
            }
        }
        let decision = decide(&book.policy, &facts, &book, &mut Watch::default());
        let step = |step: &super::decide::Step| proto::PolicyStep {
            kind: step.kind().word().to_owned(),
            what: step.what.clone(),
            reason: step.reason.clone(),
        };
        Ok(proto::DryRunReply {
            log: name,
            steps: decision.steps.iter().map(step).collect(),
            waits: decision.waits.into_iter().chain(unmarked).collect(),
            node: env.node().0,
        })
    }

    /// Runs `f` on the node's executor, so that it continues if the client disconnects (X8).
    fn run_for<T, F>(&self, name: &'static str, f: impl FnOnce(LogPolicies) -> F) -> Pending<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let ticket = self.0.env.launch(name, f(self.clone()));
        Box::pin(async move { ticket.await.unwrap_or_else(|_| Err(Refusal::stopping())) })
    }
}

impl PolicyBackend for LogPolicies {
    fn set(&self, log: String, policy: proto::LogPolicy) -> Pending<proto::PolicyReply> {
        self.run_for("policy.set", |me| async move {
            let book = me.put(&log, declared(policy, me.0.logs.first_kind())?).await?;
            Ok(me.reply(log, book.as_ref()))
        })
    }

    fn clear(&self, log: String) -> Pending<proto::PolicyReply> {
        self.run_for("policy.clear", |me| async move {
            me.forget(&log).await.map_err(|error| error.refusal())?;
            Ok(me.reply(log, None))
        })
    }

    fn show(&self, log: String) -> Pending<proto::PolicyReply> {
        self.run_for("policy.show", |me| async move {
            let book = me.find(&log).await?;
            Ok(me.reply(log, book.as_ref()))
        })
    }

    fn dry_run(&self, log: String, policy: Option<proto::LogPolicy>) -> Pending<proto::DryRunReply> {
        self.run_for("policy.dry_run", |me| async move { me.try_run(log, policy).await })
    }
}
