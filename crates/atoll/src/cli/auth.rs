//! `atoll auth`.

use atoll_client::proto::{CheckReply, ListAuthReply};
use serde_json::{Value, json};

use super::calendar::timestamp_text;
use super::{CliError, Common, Table};

/// Arguments of `atoll auth`.
#[derive(Debug, clap::Args)]
pub struct AuthArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: AuthVerb,
}

#[derive(Debug, clap::Subcommand)]
enum AuthVerb {
    /// Grant a right, instead of the one that WHO had on exactly this
    Grant {
        /// cert:NAME, the client whose certificate has this name; token:NAME; any, who has a certificate or a token
        who: String,
        /// read, write or operate; each includes those before it
        right: String,
        /// *, cluster, log:NAME, table:NAME or keyspace:NAME; a NAME may end in *
        on: String,
    },
    /// Take back what WHO has on exactly this
    Revoke {
        /// As in the grant
        who: String,
        /// As in the grant
        on: String,
    },
    /// List the grants and the names of the tokens
    List,
    /// Say who this client is, or whether it, or WHO, may do something
    Check {
        /// The right
        #[arg(requires = "on")]
        right: Option<String>,
        /// cluster, log:NAME, table:NAME or keyspace:NAME
        on: Option<String>,
        /// Ask about somebody else; only operators of the cluster may
        #[arg(long, value_name = "WHO")]
        who: Option<String>,
    },
    /// Create, revoke and list tokens
    Token {
        #[command(subcommand)]
        verb: TokenVerb,
    },
}

#[derive(Debug, clap::Subcommand)]
enum TokenVerb {
    /// Create a token and print it. Nobody can show it again: the cluster keeps only its hash
    Create {
        /// Its name, which grants use: token:NAME
        name: String,
    },
    /// Remove a token, and what was granted to its bearer
    Revoke {
        /// Its name
        name: String,
    },
    /// List the names of the tokens
    List,
}

/// Runs `atoll auth`.
pub async fn run(args: &AuthArgs) -> Result<(), CliError> {
    let auth = args.common.client().await?.auth();
    let done = |changed: bool, words: String, nothing: &str| {
        args.common.print_done(&json!({"changed": changed}), || match changed {
            true => words,
            false => nothing.to_owned(),
        })
    };
    match &args.verb {
        AuthVerb::Grant { who, right, on } => {
            let changed = auth.grant(who, right, on).await?;
            done(changed, format!("{who} may {right} {on}"), "it was granted before")
        }
        AuthVerb::Revoke { who, on } => {
            let changed = auth.revoke(who, on).await?;
            done(changed, format!("{who} has lost what it had on {on}"), "there was no such grant")
        }
        AuthVerb::List => {
            let list = auth.list().await?;
            args.common.print(&to_json(&list), || to_text(&list))
        }
        AuthVerb::Check { right, on, who } => {
            let text = |word: &Option<String>| word.clone().unwrap_or_default();
            let reply = auth.check(&text(who), &text(right), &text(on)).await?;
            say_check(args, &reply, right.as_deref(), on.as_deref())
        }
        AuthVerb::Token { verb: TokenVerb::Create { name } } => {
            let token = auth.create_token(name).await?;
            let text = token.text().to_owned();
            args.common.print_done(&json!({"name": name, "token": text}), || text.clone())
        }
        AuthVerb::Token { verb: TokenVerb::Revoke { name } } => {
            let changed = auth.revoke_token(name).await?;
            done(changed, format!("the token {name} is of no use any more"), "there was no such token")
        }
        AuthVerb::Token { verb: TokenVerb::List } => {
            let list = auth.list().await?;
            args.common.print(&to_json(&list)["tokens"], || tokens(&list))
        }
    }
}

fn say_check(
    args: &AuthArgs,
    reply: &CheckReply,
    right: Option<&str>,
    on: Option<&str>,
) -> Result<(), CliError> {
    let (Some(right), Some(on)) = (right, on) else {
        return args.common.print(&json!({"who": reply.who}), || reply.who.clone());
    };
    let CheckReply { who, allowed } = reply;
    args.common.print(&json!({"who": who, "right": right, "on": on, "allowed": allowed}), || {
        format!("{who} {} {right} {on}", if *allowed { "may" } else { "may not" })
    })?;
    // So that scripts can ask.
    if *allowed { Ok(()) } else { Err(CliError::Check(format!("{who} lacks the right to {right} {on}"))) }
}

fn to_json(list: &ListAuthReply) -> Value {
    let grants = list.grants.iter().map(|g| json!({"who": g.who, "right": g.right, "on": g.on}));
    let tokens = list.tokens.iter().map(|t| json!({"name": t.name, "created_ms": t.created_ms}));
    json!({
        "required": list.required, "operators": list.operators,
        "grants": grants.collect::<Vec<_>>(), "tokens": tokens.collect::<Vec<_>>(),
    })
}

fn to_text(list: &ListAuthReply) -> String {
    let mut out = match list.required {
        true => "this node refuses what is not granted\n".to_owned(),
        false => "this node requires no grants: whoever reaches it may do everything\n".to_owned(),
    };
    if !list.operators.is_empty() {
        let operators: Vec<_> = list.operators.iter().map(|name| format!("cert:{name}")).collect();
        out += &format!("operators by its configuration: {}\n", operators.join(", "));
    }
    let mut grants = Table::new(["who", "right", "on"]);
    for grant in &list.grants {
        grants.row([grant.who.clone(), grant.right.clone(), grant.on.clone()]);
    }
    if !grants.is_empty() {
        out += &format!("\n{grants}");
    }
    if !list.tokens.is_empty() {
        out += &format!("\n{}", tokens(list));
    }
    out
}

fn tokens(list: &ListAuthReply) -> String {
    let mut table = Table::new(["token", "created"]);
    for token in &list.tokens {
        let us = i64::try_from(token.created_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        table.row([token.name.clone(), timestamp_text(us)]);
    }
    table.to_string()
}
