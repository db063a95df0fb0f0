//! Generates histories whose verdict is known: explained ones from a sequential run with random intervals, and refuted ones from them.

use serde_json::{Value, json};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// An operation of a generated history.
#[derive(Clone, Debug)]
pub struct Made {
    pub client: u64,
    pub call: i64,
    pub returned: i64,
    /// None if the outcome is unknown.
    pub result: Option<Value>,
    pub request: Value,
}

impl Made {
    pub fn line(&self) -> String {
        let outcome = if self.result.is_some() { "yes" } else { "unknown" };
        json!({
            "client": self.client, "call": self.call, "return": self.returned, "outcome": outcome,
            "do": self.request, "result": self.result,
        })
        .to_string()
    }
}

pub fn text(kind: &str, made: &[Made]) -> String {
    let head = json!({"type": kind}).to_string();
    std::iter::once(head).chain(made.iter().map(Made::line)).collect::<Vec<_>>().join("\n")
}

/// What to generate.
#[derive(Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub operations: usize,
    pub keys: u64,
    pub clients: u64,
    /// Of a thousand operations, how many have no answer.
    pub unknown: u64,
    /// Of a hundred operations, how many are transactions over several keys.
    pub transactions: u64,
}

/// A sequential table: rows with versions. It shares nothing with the checker.
struct Model {
    rows: Vec<Option<(i64, i64)>>,
    version: i64,
}

enum Wish {
    Get(usize),
    /// A put with a condition: the version that the row must have, 0 for no row, or nothing.
    Put(usize, i64, Option<i64>),
    Delete(usize),
}

impl Model {
    fn execute(&mut self, wishes: &[Wish]) -> Value {
        let before = self.rows.clone();
        let version = self.version + 1;
        let (mut read, mut wrote) = (Vec::new(), false);
        for wish in wishes {
            match wish {
                Wish::Get(key) => read.push(match self.rows[*key] {
                    Some((value, version)) => json!({"value": value, "version": version}),
                    None => Value::Null,
                }),
                Wish::Put(key, value, expect) => {
                    let held = self.rows[*key].map_or(0, |(_, version)| version);
                    if expect.is_some_and(|expect| expect != held) {
                        self.rows = before;
                        return json!("conflict");
                    }
                    self.rows[*key] = Some((*value, version));
                    wrote = true;
                }
                Wish::Delete(key) => {
                    self.rows[*key] = None;
                    wrote = true;
                }
            }
        }
        if wrote {
            self.version = version;
            return json!({"done": {"read": read, "version": version}});
        }
        json!({"done": {"read": read}})
    }
}

fn request(wishes: &[Wish]) -> Value {
    let key = |key: &usize| format!("k{key}");
    let one = |wish: &Wish| match wish {
        Wish::Get(k) => json!({"get": {"key": key(k)}}),
        Wish::Put(k, value, None) => json!({"put": {"key": key(k), "value": value}}),
        Wish::Put(k, value, Some(0)) => json!({"put": {"key": key(k), "value": value, "expect": "absent"}}),
        Wish::Put(k, value, Some(version)) => {
            json!({"put": {"key": key(k), "value": value, "expect": {"version": version}}})
        }
        Wish::Delete(k) => json!({"delete": {"key": key(k)}}),
    };
    wishes.iter().map(one).collect()
}

/// A history of a table that has an order.
pub fn explained(plan: Plan) -> Vec<Made> {
    let mut random = Random(plan.seed);
    let mut model = Model { rows: vec![None; plan.keys as usize], version: 0 };
    let mut free = vec![0_i64; plan.clients as usize];
    let mut late: Vec<(usize, Vec<Wish>)> = Vec::new();
    let mut made = Vec::new();
    let mut now = 0;
    let mut value = 0;
    while made.len() < plan.operations {
        now += 1 + random.below(20) as i64;
        while let Some(at) = late.iter().position(|(due, _)| *due <= made.len()) {
            let (_, wishes) = late.swap_remove(at);
            model.execute(&wishes);
        }
        let client = random.below(plan.clients);
        let from = free[client as usize];
        if from >= now {
            continue;
        }
        let key = random.below(plan.keys) as usize;
        value += 1;
        // Mostly the version that the row has, sometimes an old one.
        let held = model.rows[key].map_or(0, |(_, version)| version);
        let expect = match random.below(4) {
            0 => None,
            1 => Some(random.below(model.version.unsigned_abs() + 1) as i64),
            _ => Some(held),
        };
        let wishes = match random.below(100) {
            luck if luck < plan.transactions => {
                let other = (key + 1) % plan.keys as usize;
                vec![
                    Wish::Get(key),
                    Wish::Get(other),
                    Wish::Put(key, value, expect),
                    Wish::Put(other, value, None),
                ]
            }
            luck if luck < 60 => vec![Wish::Get(key)],
            luck if luck < 90 => vec![Wish::Put(key, value, expect)],
            _ => vec![Wish::Delete(key)],
        };
        let call = from.max(now - 1 - random.below(30 * plan.clients) as i64) + 1;
        let mut returned = now + random.below(30 * plan.clients) as i64;
        let unknown = random.below(1000) < plan.unknown;
        let request = request(&wishes);
        let result = match unknown {
            false => Some(model.execute(&wishes)),
            true => {
                match random.below(3) {
                    0 => {}
                    1 => drop(model.execute(&wishes)),
                    // The client gives up before it takes effect.
                    _ => {
                        returned = now;
                        late.push((made.len() + random.below(40) as usize, wishes));
                    }
                }
                None
            }
        };
        free[client as usize] = returned + 1;
        made.push(Made { client, call: call.min(now), returned, result, request });
    }
    made
}

/// Changes one thing in an explained history so that no order explains it: a read, long after a value was overwritten, finds it again.
pub fn stale_read(made: &mut Vec<Made>, random: &mut Random) -> bool {
    let row_of = |one: &Made| {
        let result = one.result.as_ref()?;
        let version = result["done"]["version"].as_i64()?;
        let put = one.request.as_array()?.iter().find(|step| step["put"].is_object())?;
        Some((put["put"]["key"].as_str()?.to_owned(), put["put"]["value"].as_i64()?, version))
    };
    let writes: Vec<(usize, (String, i64, i64))> =
        made.iter().enumerate().filter_map(|(n, one)| Some((n, row_of(one)?))).collect();
    for _ in 0..20 {
        let (first, (key, value, version)) = &writes[random.below(writes.len() as u64) as usize];
        let overwritten =
            writes.iter().find(|(n, (other, _, _))| other == key && made[*n].call > made[*first].returned);
        let Some((second, _)) = overwritten else { continue };
        let call = made[*second].returned + 1;
        let row = json!({"value": value, "version": version});
        made.push(Made {
            client: 1000,
            call,
            returned: call + 5,
            result: Some(json!({"done": {"read": [row]}})),
            request: json!([{"get": {"key": key}}]),
        });
        return true;
    }
    false
}

/// Two transactions that both replaced the same version.
pub fn lost_update(made: &mut Vec<Made>, random: &mut Random) -> bool {
    let conditional = |one: &&Made| {
        let step = one.request.as_array().and_then(|steps| steps.iter().find(|s| s["put"].is_object()));
        let expects = step.is_some_and(|step| step["put"]["expect"]["version"].as_i64() > Some(0));
        let simple = one.request.as_array().is_some_and(|steps| steps.len() == 1);
        simple && expects && one.result.as_ref().is_some_and(|result| result["done"].is_object())
    };
    let done: Vec<Made> = made.iter().filter(conditional).cloned().collect();
    if done.is_empty() {
        return false;
    }
    let mut again = done[random.below(done.len() as u64) as usize].clone();
    again.client = 1000;
    again.request[0]["put"]["value"] = json!(-1);
    again.result = Some(json!({"done": {}}));
    made.push(again);
    true
}

/// A read of a value that nobody wrote.
pub fn invented(made: &mut Vec<Made>, random: &mut Random) -> bool {
    let call = made[random.below(made.len() as u64) as usize].call;
    made.push(Made {
        client: 1000,
        call,
        returned: call + 3,
        result: Some(json!({"done": {"read": [{"value": -7}]}})),
        request: json!([{"get": {"key": "k0"}}]),
    });
    true
}
