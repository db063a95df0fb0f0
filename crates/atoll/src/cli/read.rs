//! `atoll log read` and `atoll log tail`.

use std::io::{self, BufWriter, StdoutLock, Write};

use atoll_client::{Log, ReadBatch, ReadOptions, Reader};
use serde_json::json;

use super::{CliError, Common, grouped, hex};

/// Arguments of `atoll log read`.
#[derive(Debug, clap::Args)]
pub struct ReadArgs {
    /// First position [default: the first that is not trimmed]
    #[arg(long, value_name = "POSITION")]
    from: Option<u64>,
    /// Stop before this position [default: the tail]
    #[arg(long, value_name = "POSITION")]
    to: Option<u64>,
    /// Print at most N records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print only the payloads, each with a line end: this reproduces the input of `append --lines`
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Read only from the disk of the node that answers; fail if it lacks a record
    #[arg(long)]
    local_only: bool,
}

/// Arguments of `atoll log tail`.
#[derive(Debug, clap::Args)]
pub struct TailArgs {
    /// First position [default: the tail, so that only new records are shown]
    #[arg(long, value_name = "POSITION")]
    from: Option<u64>,
    /// Stop after N records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print only the payloads, each with a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

/// How records are written.
#[derive(Clone, Copy)]
enum Form {
    /// Payload and line end.
    Raw,
    /// Position and payload, unprintable bytes escaped.
    Text,
    /// One value per line.
    Json,
}

impl Form {
    fn of(common: &Common, raw: bool) -> Self {
        match (raw, common.json) {
            (true, _) => Form::Raw,
            (false, true) => Form::Json,
            (false, false) => Form::Text,
        }
    }
}

/// Runs `atoll log read`.
pub async fn run(common: &Common, log: &Log, args: &ReadArgs) -> Result<(), CliError> {
    let options = ReadOptions {
        from: args.from,
        to: args.to,
        limit: args.limit,
        follow: false,
        local_only: args.local_only,
    };
    let (records, remote) = copy(log.read(options), Form::of(common, args.raw), false).await?;
    if args.raw {
        eprintln!("{} records, {} of them from another server", grouped(records), grouped(remote));
    } else if records == 0 && !common.json {
        eprintln!("no records");
    }
    Ok(())
}

/// Runs `atoll log tail`.
pub async fn run_tail(common: &Common, log: &Log, args: &TailArgs) -> Result<(), CliError> {
    let from = match args.from {
        Some(from) => from,
        None => log.check_tail().await?,
    };
    let options = ReadOptions { follow: true, limit: args.limit, ..ReadOptions::from(from) };
    copy(log.read(options), Form::of(common, args.raw), true).await.map(drop)
}

/// Writes records to standard output. Returns how many, and how many of them came from another server than the one that answered.
async fn copy(mut reader: Reader, form: Form, live: bool) -> Result<(u64, u64), CliError> {
    let mut out = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    let (mut records, mut remote) = (0, 0);
    while let Some(batch) = reader.next().await? {
        write_batch(&mut out, &batch, form)?;
        records += batch.records.len() as u64;
        remote += batch.remote;
        if live {
            out.flush()?;
        }
    }
    out.flush()?;
    Ok((records, remote))
}

fn write_batch(out: &mut BufWriter<StdoutLock<'_>>, batch: &ReadBatch, form: Form) -> io::Result<()> {
    for (position, record) in (batch.first..).zip(&batch.records) {
        match form {
            Form::Raw => {
                out.write_all(&record.payload)?;
                out.write_all(b"\n")?;
            }
            Form::Text => writeln!(out, "{position}\t{}", escaped(&record.payload))?,
            Form::Json => {
                let mut value = json!({"position": position, "client": format!("{:016x}", record.client), "seq": record.seq});
                match std::str::from_utf8(&record.payload) {
                    Ok(text) => value["payload"] = text.into(),
                    Err(_) => value["payload_hex"] = hex(&record.payload).into(),
                }
                writeln!(out, "{value}")?;
            }
        }
    }
    Ok(())
}

/// Returns text unchanged, with control characters and bytes that are not UTF-8 as `\xNN`.
fn escaped(payload: &[u8]) -> String {
    let mut out = String::with_capacity(payload.len());
    for chunk in payload.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => out.push(c),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    for b in c.encode_utf8(&mut utf8).bytes() {
                        out.push_str(&format!("\\x{b:02x}"));
                    }
                }
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_at_the_mercy_of_payloads() {
        assert_eq!(escaped("plain ü\ttext".as_bytes()), "plain ü\ttext");
        assert_eq!(escaped(b"\x1b[2J\nback\\slash\xff"), "\\x1b[2J\\x0aback\\\\slash\\xff");
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }
}
