//! The command line as users type it.
#![allow(clippy::unwrap_used)]

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::Atoll;

#[test]
fn the_command_tree_is_consistent() {
    Atoll::command().debug_assert();
}

#[test]
fn documented_commands_parse() {
    for line in [
        "atoll dev",
        "atoll dev --nodes 5 --data d --no-restart",
        "atoll serve --data d",
        "atoll log create --log a/b --loglet native --servers 1,2,3 --sequencer 2",
        "atoll log list --json",
        "atoll log append hello",
        "atoll log append --lines - --depth 64",
        "atoll log --log x append hello",
        "atoll log read --from 1 --to 9 --limit 3 --raw --node 2 --local-only",
        "atoll log tail --from 0",
        "atoll log check-tail --connect 127.0.0.1:7411,127.0.0.1:7421",
        "atoll log trim 500",
        "atoll chain show",
        "atoll chain extend --loglet native --servers 1,2,3 --sequencer 2 --log main",
        "atoll chain truncate --json",
        "atoll chain modify --segment 0 --servers 1,2,4",
        "atoll chain modify --id 00000000000000000000000000000001",
        "atoll policy set --cold-loglet object --cold-option url=file:///c --cold-age 6h --hot-size 10GB --keep-age 30d --keep-size 500GB --segment-age 1h --segment-size 1GB --log main",
        "atoll policy set --log db --converged --least-replicas 3 --else-loglet object --else-option url=s3://a/b --settle 5s --return-after 1m --rest 5m",
        "atoll policy set --converged native --least-replicas 3 --else-loglet native --else-place server=4,5,6",
        "atoll policy dry-run --keep-age 1d --json",
        "atoll policy --log x show",
        "atoll policy clear --log x",
        "atoll status --json",
        "atoll node list",
        "atoll node add 4 127.0.0.1:7442 --roles log,meta",
        "atoll node drain 2",
        "atoll node remove 2",
        "atoll bench log --payload 1024 --depth 64 --seconds 10 --json --count-after --timeline --longest-gap",
        "atoll bench kv --keyspace locks --keys 16000 --payload 50 --depth 64 --reads 95 --distribution pareto --fill --timeline --json",
        "atoll bench kv --table bench --seconds 5 --warmup 1",
        "atoll zookeeper import --from a:2181,b:2181 --to c:2181 --chroot /a --under /b --auth digest:u:p --overwrite --json",
        "atoll zookeeper import --from a:2181 --compare-only",
        "atoll kv create locks --engine e --replicas 3 --shards 256 --buckets 64 --durability memory --nodes 1,2,3",
        "atoll kv list --json",
        "atoll kv describe locks",
        "atoll kv delete locks --yes",
        "atoll kv get locks a b --json",
        "atoll kv put locks a v --if-version 3",
        "atoll kv del locks a --if-value v",
        "atoll kv watch locks a --after 3 --count 2 --json",
        "atoll kv lease acquire locks a --owner n1 --for-ms 5000 --wait-ms 20000 --json",
        "atoll kv lease renew locks a --fencing 3 --for-ms 5000",
        "atoll kv lease release locks a --fencing 3",
        "atoll kv lease holder locks a --json",
        "atoll kv keys locks --prefix a --after aa --limit 10",
        "atoll check linearizable --history h.jsonl --type map --within 60 --memory-mb 512 --json",
        "atoll check run --against table --connect a:1,b:1 --clients 8 --keys 5 --seconds 3 --seed 7 --history h.jsonl",
        "atoll check run --against zookeeper --zookeeper a:1,b:1 --history h.jsonl",
        "atoll check run --against kv --keyspace locks --engine e --history h.jsonl",
        "atoll corfu show --log main --json",
        "atoll corfu append hello --log main",
        "atoll corfu read 1 2 3 --json",
        "atoll corfu fill 7",
        "atoll corfu trim 7",
        "atoll corfu trim --below 7",
        "atoll corfu replace --unit 2 --by 4",
        "atoll corfu replace --sequencer 5",
        "atoll scalog shard list --log main --json",
        "atoll scalog shard add",
        "atoll scalog shard add --nodes 5,6 --number 7",
        "atoll scalog shard finalize 1 --after 3",
        "atoll scalog append hello --policy round-robin",
        "atoll scalog append hello --shard 2",
        "atoll scalog read 1 2 3 --shard 0 --json",
        "atoll scalog subscribe --from 5 --count 10",
        "atoll scalog trim 7",
        "atoll completions bash",
    ] {
        if let Err(error) = Atoll::try_parse_from(line.split(' ')) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn wrong_lines_are_refused_with_the_right_words() {
    for (line, kind) in [
        ("atoll log append", ErrorKind::MissingRequiredArgument),
        ("atoll log append x --lines f", ErrorKind::ArgumentConflict),
        ("atoll log read --raw --json", ErrorKind::ArgumentConflict),
        ("atoll log trim", ErrorKind::MissingRequiredArgument),
        ("atoll node add 0 a:1", ErrorKind::ValueValidation),
        ("atoll node add 4 a:1 --roles leader", ErrorKind::InvalidValue),
        ("atoll chain modify", ErrorKind::MissingRequiredArgument),
        ("atoll bench log --depth 0", ErrorKind::ValueValidation),
        ("atoll bench log --seconds 0", ErrorKind::ValueValidation),
        ("atoll bench kv --reads 101", ErrorKind::ValueValidation),
        ("atoll bench kv --distribution normal", ErrorKind::InvalidValue),
        ("atoll bench kv --keyspace a --table b", ErrorKind::ArgumentConflict),
        ("atoll kv create a --durability tape", ErrorKind::InvalidValue),
        ("atoll kv create a --replicas 10", ErrorKind::ValueValidation),
        ("atoll kv create a --shards 0", ErrorKind::ValueValidation),
        ("atoll kv get a", ErrorKind::MissingRequiredArgument),
        ("atoll kv put a k v --if-absent --if-version 3", ErrorKind::ArgumentConflict),
        ("atoll check linearizable", ErrorKind::MissingRequiredArgument),
        ("atoll check linearizable --history h --type list", ErrorKind::ValueValidation),
        ("atoll check run --against etcd --history h", ErrorKind::InvalidValue),
        ("atoll check run --against table --keys 1 --history h", ErrorKind::ValueValidation),
        ("atoll corfu read", ErrorKind::MissingRequiredArgument),
        ("atoll corfu trim", ErrorKind::MissingRequiredArgument),
        ("atoll corfu trim 7 --below 9", ErrorKind::ArgumentConflict),
        ("atoll corfu replace", ErrorKind::MissingRequiredArgument),
        ("atoll corfu replace --unit 2", ErrorKind::MissingRequiredArgument),
        ("atoll corfu replace --unit 2 --by 4 --sequencer 5", ErrorKind::ArgumentConflict),
        ("atoll scalog shard", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
        ("atoll scalog shard finalize", ErrorKind::MissingRequiredArgument),
        ("atoll scalog shard add --nodes x", ErrorKind::ValueValidation),
        ("atoll scalog append hello --policy near", ErrorKind::InvalidValue),
        ("atoll scalog append hello --shard 1 --policy hash", ErrorKind::ArgumentConflict),
        ("atoll scalog read", ErrorKind::MissingRequiredArgument),
        ("atoll frobnicate", ErrorKind::InvalidSubcommand),
    ] {
        assert_eq!(Atoll::try_parse_from(line.split(' ')).unwrap_err().kind(), kind, "{line}");
    }
}
