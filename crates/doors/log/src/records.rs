//! Checks the records of an append, and describes where they are.

use atoll_client::proto::{self, Run};
use atoll_client::{MAX_MESSAGE_BYTES, MAX_MESSAGE_RECORDS, MAX_RECORD_BYTES, Reason};
use atoll_contract::{ClientId, LogPos};
use atoll_door::backend::{LogRecords, Refusal};

/// Checks the limits of an append, before anything is replicated.
pub(crate) fn check_records(client: ClientId, records: proto::Records) -> Result<LogRecords, Refusal> {
    let count = records.payloads.len();
    if count == 0 || records.first_seq == 0 {
        let next = "send at least one record; sequences start at 1";
        return Err(Refusal::no(Reason::Invalid, "no records, or no sequence", next));
    }
    if records.first_seq.checked_add(count as u64).is_none() {
        return Err(Refusal::no(Reason::Invalid, "the sequences pass 2^64", "use a new client id"));
    }
    let bytes: usize = records.payloads.iter().map(bytes::Bytes::len).sum();
    if count > MAX_MESSAGE_RECORDS || bytes > MAX_MESSAGE_BYTES {
        return Err(Refusal::no(
            Reason::TooLarge,
            format!(
                "{count} records with {bytes} bytes in one message; at most {MAX_MESSAGE_RECORDS} records \
                 with {MAX_MESSAGE_BYTES} bytes are allowed"
            ),
            "send them in several messages",
        ));
    }
    if let Some(longest) = records.payloads.iter().map(bytes::Bytes::len).max()
        && longest > MAX_RECORD_BYTES
    {
        return Err(Refusal::no(
            Reason::TooLarge,
            format!("a record has {longest} bytes; at most {MAX_RECORD_BYTES} are allowed"),
            "split it",
        ));
    }
    Ok(LogRecords {
        client,
        first_seq: records.first_seq,
        payloads: records.payloads,
        floor: records.floor.map(LogPos),
        known: None,
    })
}

/// Groups positions into runs of consecutive ones.
pub(crate) fn runs(positions: &[LogPos]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for position in positions {
        match runs.last_mut() {
            Some(run) if run.first + u64::from(run.count) == position.0 => run.count += 1,
            _ => runs.push(Run { first: position.0, count: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bytes::Bytes;

    fn records(first_seq: u64, payloads: Vec<Bytes>) -> proto::Records {
        proto::Records { first_seq, payloads, floor: None }
    }

    #[test]
    fn limits_are_checked_with_the_figure_and_the_limit_in_the_words() {
        let reason = |r: proto::Records| check_records(ClientId(1), r).map_err(|e| e.failure.reason);
        assert_eq!(reason(records(1, vec![])), Err(Reason::Invalid));
        assert_eq!(reason(records(0, vec![Bytes::new()])), Err(Reason::Invalid));
        assert_eq!(reason(records(u64::MAX, vec![Bytes::new()])), Err(Reason::Invalid));
        let long = Bytes::from(vec![0; MAX_RECORD_BYTES + 1]);
        let refusal = check_records(ClientId(1), records(1, vec![long.clone()])).unwrap_err();
        assert_eq!(refusal.failure.reason, Reason::TooLarge);
        assert!(refusal.failure.message.contains("1000001") && refusal.failure.message.contains("1000000"));
        assert!(check_records(ClientId(1), records(1, vec![long.slice(1..)])).is_ok());
        assert_eq!(reason(records(1, vec![Bytes::new(); MAX_MESSAGE_RECORDS + 1])), Err(Reason::TooLarge));
        assert_eq!(reason(records(1, vec![long.slice(1..); 5])), Err(Reason::TooLarge));
    }

    #[test]
    fn positions_become_runs() {
        let run = |first, count| Run { first, count };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[4, 5, 6, 9, 3, 4].map(LogPos)), [run(4, 3), run(9, 1), run(3, 2)]);
    }
}
