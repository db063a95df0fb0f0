//! A door over an engine without a log.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use atoll_core::NodeId;
use atoll_db::{Applications, Engine, MemoryStore, Solo, Store};
use atoll_zookeeper::server::tls::acceptor;
use atoll_zookeeper::{Cluster, DEFAULT_WORDS, Door, Listening, Options, TlsFiles, ZooKeeper};

use super::client::Client;

/// A cluster of one node.
pub struct Alone;

impl Cluster for Alone {
    fn living(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
}

/// Starts a door that serves until the process ends, and answers all four-letter words unless others are given; returns its address.
pub fn door(options: Options) -> SocketAddr {
    door_with(options, None).0
}

/// Like [`door`], in the given cluster.
pub fn door_in(cluster: Arc<dyn Cluster>, options: Options) -> SocketAddr {
    serve(cluster, options, None).0
}

/// Like [`door`]. The second address uses TLS if files are given.
pub fn door_with(options: Options, files: Option<&TlsFiles>) -> (SocketAddr, SocketAddr) {
    serve(Arc::new(Alone), options, files)
}

/// Opens a door that accepts no connections yet; returns it with its engine.
pub fn alone(options: Options) -> (Door, Engine<ZooKeeper>) {
    open(Arc::new(Alone), options)
}

fn open(cluster: Arc<dyn Cluster>, options: Options) -> (Door, Engine<ZooKeeper>) {
    open_on(Box::new(MemoryStore::new()), cluster, options)
}

fn open_on(store: Box<dyn Store>, cluster: Arc<dyn Cluster>, options: Options) -> (Door, Engine<ZooKeeper>) {
    let mut applications = Applications::new();
    let slot = applications.add(ZooKeeper);
    let engine = Solo::open(applications, store).unwrap().engine(&slot);
    let given = (options.words != DEFAULT_WORDS).then(|| options.words.clone());
    let options = Options { words: given.unwrap_or_else(|| vec!["*".to_owned()]), ..options };
    (Door::open(engine.clone(), cluster, options).unwrap(), engine)
}

/// Like [`door`], with the state in this store.
pub fn door_on(store: Box<dyn Store>, options: Options) -> SocketAddr {
    serve_door(open_on(store, Arc::new(Alone), options).0, None).0
}

/// Like [`door`]; also returns the engine.
pub fn door_and_engine(options: Options) -> (SocketAddr, Engine<ZooKeeper>) {
    let (door, engine) = alone(options);
    (serve_door(door, None).0, engine)
}

fn serve(cluster: Arc<dyn Cluster>, options: Options, files: Option<&TlsFiles>) -> (SocketAddr, SocketAddr) {
    serve_door(open(cluster, options).0, files)
}

/// Serves a door until the process ends; returns its addresses.
pub fn serve_door(door: Door, files: Option<&TlsFiles>) -> (SocketAddr, SocketAddr) {
    let acceptor = files.map(|files| acceptor(files).unwrap());
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut places, mut at) = (Vec::new(), Vec::new());
            for tls in [None, acceptor] {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                at.push(listener.local_addr().unwrap());
                places.push(Listening { listener, tls });
            }
            told.send((at[0], at[1])).unwrap();
            door.serve_all(places, std::future::pending()).await;
        });
    });
    tell.recv().unwrap()
}

/// Starts a door with the admin server; returns both addresses.
pub fn door_with_admin(options: Options) -> (SocketAddr, SocketAddr) {
    let (door, _) = alone(options);
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let clients = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let admin = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send((clients.local_addr().unwrap(), admin.local_addr().unwrap())).unwrap();
            let commands = door.serve_admin(admin, std::future::pending());
            tokio::join!(commands, door.clone().serve(clients, std::future::pending()));
        });
    });
    tell.recv().unwrap()
}

/// Returns the answer to a four-letter word.
pub fn ask(door: SocketAddr, word: &str) -> String {
    let mut stream = Client::socket(door);
    stream.write_all(word.as_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

/// Returns the value of a metric in `mntr`.
pub fn figure(door: SocketAddr, name: &str) -> f64 {
    let told = ask(door, "mntr");
    let line = told.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('\t'));
    line.unwrap_or_else(|| panic!("{name} in {told}")).parse().unwrap()
}
