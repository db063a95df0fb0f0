//! Many sessions.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::{Client, Events};
use super::wire::{Request, Ticket};

/// How many sessions are opened, or given watches, at the same time.
const AT_ONCE: usize = 128;
/// How long a session lives without a message.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a session is kept alive in that time.
const PINGS: u32 = 3;
/// How many sessions are kept alive together, before the next ones are.
const PINGED_TOGETHER: usize = 20;
/// A client that finds no server tries the next one after this.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long a move may take. A session has expired by then.
const MOVED_WITHIN: Duration = Duration::from_secs(60);

/// Sessions, and what they watch.
#[derive(Debug)]
pub struct Crowd {
    clients: Vec<Arc<Client>>,
    watched: Vec<Arc<Vec<String>>>,
    /// The events of all of them.
    pub events: Arc<Events>,
}

/// Does something for each of these, some at a time, and returns the results in order.
async fn for_each<T, R, F>(
    each: impl IntoIterator<Item = T>,
    what: impl Fn(usize, T) -> F,
) -> io::Result<Vec<R>>
where
    R: Send + 'static,
    F: Future<Output = io::Result<R>> + Send + 'static,
{
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut under_way = JoinSet::new();
    for (number, one) in each.into_iter().enumerate() {
        let (turns, done) = (turns.clone(), what(number, one));
        under_way.spawn(async move {
            let _turn = turns.acquire_owned().await;
            done.await.map(|result| (number, result))
        });
    }
    let mut results = Vec::with_capacity(under_way.len());
    while let Some(ended) = under_way.join_next().await {
        results.push(ended.map_err(io::Error::other)??);
    }
    results.sort_unstable_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

impl Crowd {
    /// Opens sessions, in turn at these servers.
    pub async fn open(addresses: &[String], sessions: usize) -> io::Result<Self> {
        let events = Arc::<Events>::default();
        let clients = for_each(addresses.iter().cycle().take(sessions), |_, address| {
            let (address, events) = (address.clone(), events.clone());
            async move { Client::open(&address, &Ticket::default(), 0, TIMEOUT, &events).await.map(Arc::new) }
        });
        let clients = clients.await?;
        Ok(Crowd { watched: vec![Arc::default(); clients.len()], clients, events })
    }

    /// Returns how many sessions there are.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Lets each session watch these nodes, which `paths` names for the number of a session.
    pub async fn watch(&mut self, paths: impl Fn(usize) -> Vec<String>) -> io::Result<()> {
        let all: Vec<_> = (0..self.len()).map(|number| Arc::new(paths(number))).collect();
        for_each(self.clients.iter().cloned().zip(all.iter().cloned()), |_, (client, paths)| async move {
            let requests: Vec<_> = paths.iter().map(|path| Request::GetData(path, true)).collect();
            let wrong = client.ask(&requests).await?.iter().filter(|reply| reply.error != 0).count();
            if wrong > 0 {
                Err(io::Error::other(format!("{wrong} watched nodes cannot be read")))
            } else {
                Ok(())
            }
        })
        .await?;
        self.watched = all;
        Ok(())
    }

    /// Keeps the sessions alive, until the returned task is ended.
    pub fn keep_alive(&self) -> tokio::task::JoinHandle<()> {
        let clients = self.clients.clone();
        let rounds = clients.len().div_ceil(PINGED_TOGETHER).max(1) as u32;
        let pause = TIMEOUT / PINGS / rounds;
        tokio::spawn(async move {
            loop {
                for some in clients.chunks(PINGED_TOGETHER) {
                    for client in some {
                        // A session that has lost its server has other worries.
                        let _ = client.ping().await;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        })
    }

    /// Lets each session come back to one of these servers when its own has died, and set its watches again. Returns how long after `since`
    /// each one had done so, in order, and how many could not.
    pub async fn move_to(&self, addresses: &[String], since: Instant) -> (Vec<Duration>, usize) {
        let addresses: Arc<[String]> = addresses.into();
        let mut under_way = JoinSet::new();
        for (number, (client, watched)) in self.clients.iter().zip(&self.watched).enumerate() {
            let (client, watched, events) = (client.clone(), watched.clone(), self.events.clone());
            let addresses = addresses.clone();
            under_way.spawn(async move {
                client.lost().await;
                let zxid = client.last_zxid();
                for server in addresses.iter().cycle().skip(number % addresses.len()) {
                    if since.elapsed() > MOVED_WITHIN {
                        break;
                    }
                    match Client::open(server, &client.ticket, zxid, client.timeout, &events).await {
                        Ok(back) => {
                            if back.one(Request::SetWatches(zxid, &watched)).await.is_ok() {
                                return Some((since.elapsed(), back));
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => break,
                        Err(_) => {}
                    }
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                None
            });
        }
        let (mut took, mut lost, mut back) = (Vec::new(), 0, Vec::new());
        while let Some(ended) = under_way.join_next().await {
            match ended {
                Ok(Some((after, client))) => {
                    took.push(after);
                    // It stays open until all have moved.
                    back.push(client);
                }
                _ => lost += 1,
            }
        }
        took.sort_unstable();
        (took, lost)
    }

    /// Ends all sessions.
    pub async fn close(self) {
        let _ = for_each(self.clients, |_, client| async move {
            let _ = client.ask(&[Request::Close]).await;
            Ok(())
        })
        .await;
    }
}
