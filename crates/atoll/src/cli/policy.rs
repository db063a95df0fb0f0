//! `atoll policy`: declares what the nodes do with a log by themselves, and shows what they did.

use std::time::Duration;

use atoll_client::proto::{
    ColdPolicy, DryRunReply, LogPolicy, LogletSpec, Place, PlacementPolicy, PolicyAction, PolicyReply,
};
use serde_json::{Value, json};

use super::spans::{bytes, date, of_bytes, of_ms, span, to_ms};
use super::{CliError, Common, DEFAULT_LOG, Table, option, place};

/// Arguments of `atoll policy`.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub common: Common,
    /// Which log [default: main]
    #[arg(long, global = true, value_name = "NAME")]
    pub log: Option<String>,
    #[command(subcommand)]
    verb: PolicyVerb,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyVerb {
    /// Declare the whole policy of the log, in place of an earlier one
    Set(Box<Declared>),
    /// Show the policy, and what nodes did because of it
    Show,
    /// End the policy; what was done because of it stays
    Clear,
    /// Show what a policy would do now, without doing it; without options, the declared one
    DryRun(Box<Declared>),
}

/// A policy as options.
#[derive(Debug, Default, clap::Args)]
struct Declared {
    /// Prefer the nodes with replicas of the database, in a loglet of this kind [default: that of new logs]
    #[arg(long, value_name = "KIND", num_args = 0..=1, default_missing_value = "", help_heading = "Placement")]
    converged: Option<String>,
    /// Leave them when fewer replicas than this live, and return later
    #[arg(
        long,
        value_name = "COUNT",
        requires = "converged",
        requires = "else_loglet",
        help_heading = "Placement"
    )]
    least_replicas: Option<u32>,
    /// For a loglet of this kind
    #[arg(long, value_name = "KIND", requires = "least_replicas", help_heading = "Placement")]
    else_loglet: Option<String>,
    /// With these nodes for a role; repeatable
    #[arg(long, value_name = "ROLE=ID,...", value_parser = place, requires = "else_loglet", help_heading = "Placement")]
    else_place: Vec<(String, Vec<u32>)>,
    /// With this option of the kind; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = option, requires = "else_loglet", help_heading = "Placement")]
    else_option: Vec<(String, String)>,
    /// Leave only after too few have lived for so long [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "converged", help_heading = "Placement")]
    settle: Option<Duration>,
    /// Return only after enough have lived for so long [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "converged", help_heading = "Placement")]
    return_after: Option<Duration>,
    /// The least time between two switches [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "converged", help_heading = "Placement")]
    rest: Option<Duration>,
    /// Move cold segments to loglets of this kind, which is outside of the nodes, such as object
    #[arg(long, value_name = "KIND", help_heading = "Cold segments")]
    cold_loglet: Option<String>,
    /// With this option of the kind, such as url=s3://BUCKET/PREFIX; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = option, requires = "cold_loglet", help_heading = "Cold segments")]
    cold_option: Vec<(String, String)>,
    /// Those that were sealed so long ago, such as 6h
    #[arg(long, value_name = "TIME", value_parser = span, requires = "cold_loglet", help_heading = "Cold segments")]
    cold_age: Option<Duration>,
    /// The oldest, while the others have more than this, such as 10GB
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "cold_loglet", help_heading = "Cold segments")]
    hot_size: Option<u64>,
    /// Trim segments that were sealed so long ago, such as 7d
    #[arg(long, value_name = "TIME", value_parser = span, help_heading = "Retention")]
    keep_age: Option<Duration>,
    /// Trim the oldest segments as long as so much stays, such as 100GB
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Retention")]
    keep_size: Option<u64>,
    /// Seal a segment at this age [default: a quarter of the least age above]
    #[arg(long, value_name = "TIME", value_parser = span, help_heading = "Segments")]
    segment_age: Option<Duration>,
    /// Seal a segment at this size [default: a quarter of the least size above]
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Segments")]
    segment_size: Option<u64>,
}

impl Declared {
    fn policy(&self) -> LogPolicy {
        let elsewhere = self.else_loglet.as_ref().map(|kind| LogletSpec {
            kind: Some(kind.clone()),
            places: self
                .else_place
                .iter()
                .map(|(role, nodes)| Place { role: role.clone(), nodes: nodes.clone() })
                .collect(),
            options: self.else_option.iter().cloned().collect(),
            ..LogletSpec::default()
        });
        let placement = self.converged.as_ref().map(|kind| PlacementPolicy {
            kind: kind.clone(),
            least_replicas: self.least_replicas.unwrap_or(0),
            elsewhere,
            settle_ms: self.settle.map(to_ms),
            return_ms: self.return_after.map(to_ms),
            rest_ms: self.rest.map(to_ms),
        });
        let cold = self.cold_loglet.as_ref().map(|kind| ColdPolicy {
            to: Some(LogletSpec {
                kind: Some(kind.clone()),
                options: self.cold_option.iter().cloned().collect(),
                ..LogletSpec::default()
            }),
            age_ms: self.cold_age.map(to_ms),
            hot_bytes: self.hot_size,
        });
        LogPolicy {
            placement,
            cold,
            keep_age_ms: self.keep_age.map(to_ms),
            keep_bytes: self.keep_size,
            segment_age_ms: self.segment_age.map(to_ms),
            segment_bytes: self.segment_size,
        }
    }
}

/// Runs `atoll policy`.
pub async fn run(args: &PolicyArgs) -> Result<(), CliError> {
    let (common, log) = (&args.common, args.log.as_deref().unwrap_or(DEFAULT_LOG));
    let client = common.client().await?;
    client.log(log)?;
    match &args.verb {
        PolicyVerb::Set(declared) => {
            let reply = client.set_policy(log, declared.policy()).await?;
            common.print_done(&to_json(&reply), || to_text(&reply))
        }
        PolicyVerb::Clear => {
            let reply = client.clear_policy(log).await?;
            common.print_done(&to_json(&reply), || to_text(&reply))
        }
        PolicyVerb::Show => {
            let reply = client.policy(log).await?;
            common.print(&to_json(&reply), || to_text(&reply))
        }
        PolicyVerb::DryRun(declared) => {
            let policy = Some(declared.policy()).filter(|policy| *policy != LogPolicy::default());
            let reply = client.try_policy(log, policy).await?;
            common.print(&run_json(&reply), || run_text(&reply))
        }
    }
}

fn spec_json(spec: &LogletSpec) -> Value {
    let places: serde_json::Map<String, Value> =
        spec.places.iter().map(|place| (place.role.clone(), json!(place.nodes))).collect();
    json!({"kind": spec.kind, "places": places, "options": spec.options})
}

fn policy_json(policy: &LogPolicy) -> Value {
    let placement = policy.placement.as_ref().map(|p| {
        json!({
            "kind": p.kind, "least_replicas": p.least_replicas, "elsewhere": p.elsewhere.as_ref().map(spec_json),
            "settle_ms": p.settle_ms, "return_ms": p.return_ms, "rest_ms": p.rest_ms,
        })
    });
    let cold = policy
        .cold
        .as_ref()
        .map(|c| json!({"to": c.to.as_ref().map(spec_json), "age_ms": c.age_ms, "hot_bytes": c.hot_bytes}));
    json!({
        "placement": placement, "cold": cold, "keep_age_ms": policy.keep_age_ms, "keep_bytes": policy.keep_bytes,
        "segment_age_ms": policy.segment_age_ms, "segment_bytes": policy.segment_bytes,
    })
}

fn to_json(reply: &PolicyReply) -> Value {
    let action = |a: &PolicyAction| {
        json!({
            "at_ms": a.at_ms, "node": a.node, "kind": a.kind, "what": a.what, "reason": a.reason,
            "attempts": a.attempts, "outcome": a.outcome, "error": a.error,
        })
    };
    json!({
        "log": reply.log, "policy": reply.policy.as_ref().map(policy_json), "answered_by": reply.node, "acts": reply.acts,
        "actions": reply.actions.iter().map(action).collect::<Vec<_>>(),
    })
}

/// Returns a specification as words: its kind, nodes and options.
fn spec_text(spec: &LogletSpec) -> String {
    let nodes = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut words = vec![spec.kind.clone().unwrap_or_default()];
    words.extend(spec.places.iter().map(|place| format!("{}={}", place.role, nodes(&place.nodes))));
    let mut options: Vec<String> =
        spec.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    options.sort_unstable();
    words.extend(options);
    words.join(" ")
}

fn policy_text(policy: &LogPolicy) -> Vec<String> {
    let mut lines = Vec::new();
    let time = |ms: Option<u64>| of_ms(ms.unwrap_or(0));
    if let Some(p) = &policy.placement {
        lines.push(format!("placement: {} on the nodes with replicas of the database", p.kind));
        if let Some(elsewhere) = &p.elsewhere {
            lines.push(format!(
                "  with fewer than {} for {}: {}; back after {}",
                p.least_replicas,
                time(p.settle_ms),
                spec_text(elsewhere),
                time(p.return_ms)
            ));
        }
        lines.push(format!("  at least {} between two switches", time(p.rest_ms)));
    }
    if let Some(c) = &policy.cold {
        let age = c.age_ms.map(|ms| format!("{} after they were sealed", of_ms(ms)));
        let size = c.hot_bytes.map(|bytes| format!("the oldest beyond {}", of_bytes(bytes)));
        let which: Vec<String> = age.into_iter().chain(size).collect();
        let to = c.to.as_ref().map(spec_text).unwrap_or_default();
        lines.push(format!("cold segments: {}; to {to}", which.join(", and ")));
    }
    let age = policy.keep_age_ms.map(|ms| format!("segments for {} after they were sealed", of_ms(ms)));
    let size = policy.keep_bytes.map(|bytes| format!("about {}", of_bytes(bytes)));
    let kept: Vec<String> = age.into_iter().chain(size).collect();
    if !kept.is_empty() {
        lines.push(format!("kept: at most {}; the rest is trimmed", kept.join(", and ")));
    }
    let age = policy.segment_age_ms.map(of_ms);
    let size = policy.segment_bytes.map(|bytes| format!("about {}", of_bytes(bytes)));
    let sealed: Vec<String> = age.into_iter().chain(size).collect();
    if !sealed.is_empty() {
        lines.push(format!("a segment is sealed at {}", sealed.join(", or ")));
    }
    lines
}

fn to_text(reply: &PolicyReply) -> String {
    let Some(policy) = &reply.policy else {
        return format!("log {} has no policy; `atoll policy set` declares one", reply.log);
    };
    let mut lines = vec![format!("the policy of log {}", reply.log)];
    lines.extend(policy_text(policy));
    if reply.actions.is_empty() {
        lines.push("nothing was done yet".to_owned());
        return lines.join("\n");
    }
    let mut table = Table::new(["TIME", "NODE", "ACTION", "REASON", "OUTCOME"]);
    for a in &reply.actions {
        let outcome = match (a.outcome.as_str(), a.attempts) {
            (outcome @ ("failed" | "unknown"), n) => format!("{outcome}, attempt {n}: {}", a.error),
            (outcome, 0 | 1) => outcome.to_owned(),
            (outcome, n) => format!("{outcome}, attempt {n}"),
        };
        table.row([date(a.at_ms), a.node.to_string(), a.what.clone(), a.reason.clone(), outcome]);
    }
    format!("{}\n\n{table}", lines.join("\n"))
}

fn run_json(reply: &DryRunReply) -> Value {
    let steps = reply.steps.iter().map(|s| json!({"kind": s.kind, "what": s.what, "reason": s.reason}));
    json!({"log": reply.log, "steps": steps.collect::<Vec<_>>(), "waits": reply.waits, "answered_by": reply.node})
}

fn run_text(reply: &DryRunReply) -> String {
    let mut lines: Vec<String> = Vec::new();
    match reply.steps.len() {
        0 => lines.push(format!("nothing would be done to log {} now", reply.log)),
        _ => lines.push(format!("to log {}, a node would now", reply.log)),
    }
    lines.extend(reply.steps.iter().map(|step| format!("- {}: {}", step.what, step.reason)));
    if !reply.waits.is_empty() {
        lines.push("not yet:".to_owned());
        lines.extend(reply.waits.iter().map(|wait| format!("- {wait}")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_declared_by_options_and_shown_in_words() {
        let declared = Declared {
            converged: Some(String::new()),
            least_replicas: Some(3),
            else_loglet: Some("elsewhere".into()),
            else_option: vec![("url".into(), "file:///o".into())],
            cold_loglet: Some("store".into()),
            cold_option: vec![("url".into(), "s3://b/p".into())],
            cold_age: Some(Duration::from_secs(3600)),
            hot_size: Some(10_000_000_000),
            keep_age: Some(Duration::from_secs(86_400)),
            ..Declared::default()
        };
        let policy = declared.policy();
        let reply = PolicyReply { log: "main".into(), policy: Some(policy), ..PolicyReply::default() };
        let text = to_text(&reply);
        for words in [
            "fewer than 3",
            "elsewhere url=file:///o",
            "store url=s3://b/p",
            "the oldest beyond 10 GB",
            "for 1 d",
            "nothing was done",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(to_json(&reply)["policy"]["cold"]["to"]["options"]["url"], "s3://b/p");
        assert_eq!(Declared::default().policy(), LogPolicy::default());
        assert!(to_text(&PolicyReply::default()).contains("no policy"));
        assert!(run_text(&DryRunReply::default()).starts_with("nothing would be done"));
    }
}
