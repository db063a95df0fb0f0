//! Runs a node's door in the simulator. Its connections and its housekeeping are the product's own tasks, on a separate runtime. That
//! runtime has the node's clock, which stands still unless this file advances it. The listener and additional threads are not simulated.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Env, Incarnation, NodeId, Tick};
use atoll_db::{Engine, LogPos, Observer, View};
use atoll_node::database::is_in_service;
use atoll_node::members::Members;
use atoll_zookeeper::command::PASSWORD_BYTES;
use atoll_zookeeper::event::Event;
use atoll_zookeeper::server::options::Options;
use atoll_zookeeper::tree::read;
use atoll_zookeeper::{Cluster as Living, Door, ZooKeeper};
use tokio::runtime::{Builder, Handle, Runtime};

use super::socket::{ClientEnd, DoorEnd, pair};
use crate::oracle::zookeeper::{ConnId, ZooKeeperOracle};
use crate::scenario::node::NodeHandles;
use crate::world::clients::Cluster;

/// The clock of the door advances at least this often.
const STEP: Duration = Duration::from_millis(10);
/// How many rounds of tasks that wake each other make a door count as spinning.
const MOST_ROUNDS: usize = 2_000;

/// Tells the driver that a task of the door can make progress.
#[derive(Debug, Default)]
struct Wakeup {
    due: AtomicBool,
    driver: Mutex<Option<Waker>>,
}

impl Wakeup {
    fn wake(&self) {
        self.due.store(true, Ordering::Relaxed);
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        driver.into_iter().for_each(Waker::wake);
    }
}

/// A waker that wakes a task and also the driver.
struct TaskWaker {
    wakeup: Arc<Wakeup>,
    task: Waker,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.task.wake_by_ref();
        self.wakeup.wake();
    }
}

/// A task of a door.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Holds a task until it ends or its door is closed.
#[derive(Clone)]
struct Slot(Arc<Mutex<Option<Task>>>);

impl Slot {
    fn new(task: impl Future<Output = ()> + Send + 'static) -> Slot {
        Slot(Arc::new(Mutex::new(Some(Box::pin(task)))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.lock().is_none()
    }

    fn end(&self) {
        let task = self.lock().take();
        drop(task);
    }
}

/// Polls a task with a waker that also wakes the driver.
struct DoorTask {
    wakeup: Arc<Wakeup>,
    slot: Slot,
}

impl Future for DoorTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker =
            Waker::from(Arc::new(TaskWaker { wakeup: self.wakeup.clone(), task: cx.waker().clone() }));
        let mut slot = self.slot.lock();
        let Some(task) = slot.as_mut() else { return Poll::Ready(()) };
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        let ended = if polled.is_ready() { slot.take() } else { None };
        drop(slot);
        drop(ended);
        polled
    }
}

/// The clock of a door: virtual time since its start, slightly fast or slow.
#[derive(Debug)]
struct Clock {
    env: Env,
    runtime: Handle,
    started: Tick,
    /// Its speed, in thousandths of virtual time.
    speed: u64,
    shown_ns: AtomicU64,
}

impl Clock {
    /// Advances the runtime's clock to the present.
    fn follow(&self) {
        let since = u64::try_from(self.env.now().since(self.started).as_nanos()).unwrap_or(u64::MAX);
        let now = since / 1000 * self.speed;
        let step = now.saturating_sub(self.shown_ns.fetch_max(now, Ordering::Relaxed));
        let _here = self.runtime.enter();
        let mut advance = pin!(tokio::time::advance(Duration::from_nanos(step)));
        // The first poll advances the clock; the rest only yields to other tasks.
        let _ = advance.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// An observer between the engine and the door's own observer. It reports to the oracle and checks X19.
struct Hearer {
    door: Arc<dyn Observer<Event>>,
    engine: Engine<ZooKeeper>,
    clock: Arc<Clock>,
    oracle: ZooKeeperOracle,
    cluster: Cluster<NodeHandles>,
}

impl Observer<Event> for Hearer {
    fn on_events(&self, below: LogPos, events: Vec<Event>) {
        let now_ns = self.clock.env.now().0;
        self.oracle.follow(now_ns);
        let me = self.engine.proposer();
        for event in &events {
            if let Event::SessionHeld { session, by, moves, .. } = event
                && *by == me
            {
                self.oracle.held(*session, *moves, now_ns);
            }
        }
        let shown = self.engine.view().below();
        if shown >= below {
            self.cluster.fail(format!("X19: events below {below} came when the view was at {shown}"));
        }
        self.clock.follow();
        let _here = self.clock.runtime.enter();
        self.door.on_events(below, events);
    }

    fn on_restored(&self, below: LogPos, view: &View) {
        hit("sim.zookeeper.refilled");
        let now_ns = self.clock.env.now().0;
        self.oracle.follow(now_ns);
        let me = self.engine.proposer();
        self.oracle.refilled((me.node.0, me.incarnation.0), now_ns);
        self.clock.follow();
        let _here = self.clock.runtime.enter();
        self.door.on_restored(below, view);
    }
}

/// An observer that ignores everything. It replaces a door's observer, because engine and observer hold references to each other.
struct Nobody;

impl Observer<Event> for Nobody {
    fn on_events(&self, _below: LogPos, _events: Vec<Event>) {}
}

/// Provides the members, and passwords that are the same in every run of a seed.
struct AreLiving {
    members: Members,
    env: Env,
    /// Whether the store reads from a disk.
    on_disk: bool,
}

impl Living for AreLiving {
    fn living(&self) -> Vec<NodeId> {
        let serves = |node: &NodeId| self.members.is_up(*node) && is_in_service(&self.members, *node);
        let others = self.members.peers().into_iter().filter(serves);
        others.chain([self.members.identity().node]).collect()
    }

    fn life(&self, node: NodeId) -> Option<Incarnation> {
        self.members.liveness(node).and_then(|life| life.incarnation)
    }

    fn wall_ms(&self) -> i64 {
        self.members.wall_ms().and_then(|ms| i64::try_from(ms).ok()).unwrap_or(0)
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn work_takes(&self) -> Duration {
        match self.on_disk {
            true => Duration::from_millis([0, 0, 1, 5, 20, 60][(self.env.random() % 6) as usize]),
            false => Duration::ZERO,
        }
    }

    fn draw_password(&self, password: &mut [u8; PASSWORD_BYTES]) -> bool {
        password.iter_mut().for_each(|byte| *byte = self.env.random() as u8);
        true
    }
}

/// An open door.
struct Host {
    runtime: Runtime,
    door: Door,
    engine: Engine<ZooKeeper>,
    clock: Arc<Clock>,
    wakeup: Arc<Wakeup>,
    at: Arc<AtomicI64>,
    incarnation: Incarnation,
    knocking: Vec<DoorEnd>,
    tasks: Vec<Slot>,
}

impl Drop for Host {
    /// Drops the tasks in the order in which they started, so that a seed always has the same trace. The order in which a runtime drops its
    /// tasks depends on what else the process has run.
    fn drop(&mut self) {
        let _here = self.runtime.enter();
        self.tasks.iter().for_each(Slot::end);
    }
}

impl Host {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let slot = Slot::new(task);
        self.tasks.retain(|task| !task.has_ended());
        self.tasks.push(slot.clone());
        self.runtime.spawn(DoorTask { wakeup: self.wakeup.clone(), slot });
        self.wakeup.wake();
    }

    /// Runs the door's tasks until none can make progress. Returns false if that does not end.
    fn run(&mut self) -> bool {
        for end in std::mem::take(&mut self.knocking) {
            let door = self.door.clone();
            let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
            self.spawn(async move { door.serve_stream(end, peer).await });
        }
        let zxid = read::counters(&self.engine.view_for_door()).map_or(0, |c| c.zxid);
        self.at.store(zxid, Ordering::Relaxed);
        self.clock.follow();
        let wakeup = self.wakeup.clone();
        self.runtime.block_on(async move {
            for _ in 0..MOST_ROUNDS {
                wakeup.due.store(false, Ordering::Relaxed);
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if !wakeup.due.load(Ordering::Relaxed) {
                    return true;
                }
            }
            false
        })
    }
}

#[derive(Default)]
struct Open {
    hosts: BTreeMap<NodeId, Host>,
    connections: ConnId,
}

/// The doors of all nodes. Clones share their state.
#[derive(Clone)]
pub struct Doors {
    open: Arc<Mutex<Open>>,
    env: Env,
    cluster: Cluster<NodeHandles>,
    oracle: ZooKeeperOracle,
    options: Options,
}

impl Doors {
    /// Returns an empty set of doors.
    pub fn new(env: Env, cluster: Cluster<NodeHandles>, oracle: ZooKeeperOracle, options: Options) -> Doors {
        Doors { open: Arc::default(), env, cluster, oracle, options }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the engine of a node whose door is open.
    pub fn engine(&self, node: NodeId) -> Option<Engine<ZooKeeper>> {
        self.lock().hosts.get(&node).map(|host| host.engine.clone())
    }

    /// Opens the door of a node's new life. Its clock runs at `speed` thousandths of virtual time.
    pub fn open(&self, node: NodeId, engine: Engine<ZooKeeper>, members: Members, speed: u64) {
        self.close(node);
        let Ok(runtime) = Builder::new_current_thread().enable_time().start_paused(true).build() else {
            return self.cluster.fail("HARNESS: no runtime for a door".to_owned());
        };
        let on_disk = !engine.view_for_door().is_in_memory();
        let here = runtime.enter();
        let opened = Door::open(
            engine.clone(),
            Arc::new(AreLiving { members, env: self.env.clone(), on_disk }),
            self.options.clone(),
        );
        drop(here);
        let Ok(door) = opened else {
            return self.cluster.fail(format!("the door of {node} does not open"));
        };
        let env = self.env.clone();
        let started = env.now();
        let (handle, shown_ns) = (runtime.handle().clone(), AtomicU64::new(0));
        let clock = Arc::new(Clock { env, runtime: handle, started, speed, shown_ns });
        engine.observe(Arc::new(Hearer {
            door: door.observer(),
            engine: engine.clone(),
            clock: clock.clone(),
            oracle: self.oracle.clone(),
            cluster: self.cluster.clone(),
        }));
        let (wakeup, at) = (Arc::<Wakeup>::default(), Arc::<AtomicI64>::default());
        let incarnation = engine.proposer().incarnation;
        let mut host = Host {
            runtime,
            door,
            engine,
            clock,
            wakeup: wakeup.clone(),
            at,
            incarnation,
            knocking: Vec::new(),
            tasks: Vec::new(),
        };
        let keeper = host.door.clone();
        host.spawn(async move { keeper.keep().await });
        self.lock().hosts.insert(node, host);
        self.env.spawn("zookeeper.door", Box::pin(self.clone().drive(node, incarnation, wakeup)));
    }

    /// Runs the door of one life until that life ends.
    async fn drive(self, node: NodeId, incarnation: Incarnation, wakeup: Arc<Wakeup>) {
        let index = (node.0 as usize).saturating_sub(1);
        loop {
            let due = std::future::poll_fn(|cx| {
                if wakeup.due.load(Ordering::Relaxed) {
                    return Poll::Ready(());
                }
                *wakeup.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
                Poll::Pending
            });
            let _ = self.env.within(STEP, due).await;
            let lives = self.cluster.host(index).is_some_and(|l| l.env.incarnation() == incarnation);
            if !lives {
                let is_mine =
                    |open: &Open| open.hosts.get(&node).is_some_and(|h| h.incarnation == incarnation);
                if is_mine(&self.lock()) {
                    self.close(node);
                }
                return;
            }
            if self.cluster.health(index).paused {
                self.env.sleep(STEP).await;
                continue;
            }
            self.oracle.follow(self.env.now().0);
            let Some(mut host) = self.lock().hosts.remove(&node) else { return };
            let settled = host.run();
            self.lock().hosts.insert(node, host);
            if !settled {
                self.cluster
                    .fail(format!("SPIN: the tasks of the door of {node} wake each other without end"));
                return;
            }
        }
    }

    /// Closes a node's door: drops its tasks and breaks its connections.
    fn close(&self, node: NodeId) {
        let host = self.lock().hosts.remove(&node);
        if let Some(host) = host {
            host.engine.observe(Arc::new(Nobody));
        }
    }

    /// Closes all doors.
    pub fn close_all(&self) {
        let nodes: Vec<NodeId> = self.lock().hosts.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.close(node));
    }

    /// Connects a client to a node that is up. A paused node accepts the connection and answers when it resumes.
    pub fn connect(&self, node: NodeId, latency: Duration) -> Option<ClientEnd> {
        let mut open = self.lock();
        open.connections += 1;
        let id = open.connections;
        let host = open.hosts.get_mut(&node)?;
        let to = (node.0, host.incarnation.0);
        let (client, door) = pair(id, to, &self.env, &self.oracle, host.at.clone(), latency);
        host.knocking.push(door);
        host.wakeup.wake();
        Some(client)
    }
}
