//! A proxy in front of a server, which cuts connections, also between a request and its answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct State {
    /// Whether the next bytes of the server are lost, together with the connection.
    swallows: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl State {
    fn cut(&self) {
        self.open.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// A proxy that serves until the process ends.
pub struct Proxy {
    pub address: String,
    state: Arc<State>,
}

fn copy(mut from: TcpStream, mut to: TcpStream, swallowed_by: Option<Arc<State>>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer) {
        if let Some(state) = swallowed_by.as_ref().filter(|s| s.swallows.swap(false, Ordering::SeqCst)) {
            state.cut();
            break;
        }
        if n == 0 || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl Proxy {
    pub fn open(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (state, server) = (Arc::new(State::default()), server.to_owned());
        let shared = state.clone();
        std::thread::Builder::new()
            .spawn(move || {
                for client in listener.incoming().map_while(Result::ok) {
                    let Ok(server) = TcpStream::connect(&server) else { continue };
                    let both = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                    shared.open.lock().unwrap().extend(both);
                    let (back_from, back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    let of_answers = Some(shared.clone());
                    std::thread::Builder::new().spawn(move || copy(client, server, None)).unwrap();
                    std::thread::Builder::new().spawn(move || copy(back_from, back_to, of_answers)).unwrap();
                }
            })
            .unwrap();
        Proxy { address, state }
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.state.cut();
    }

    /// Loses the next answer of the server, and cuts all connections then.
    pub fn swallow(&self) {
        self.state.swallows.store(true, Ordering::SeqCst);
    }
}
