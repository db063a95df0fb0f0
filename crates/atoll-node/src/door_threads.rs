//! The threads on which the doors of a node run.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Why something that ran on the threads of the doors has no result.
#[derive(Debug)]
pub(crate) enum TaskError<E> {
    /// It failed.
    Failed(E),
    /// It panicked. The message is on stderr.
    Panicked,
}

/// The threads on which the doors run: those of the node's configuration, or the node's own thread.
pub(crate) struct DoorThreads(Option<Runtime>);

impl DoorThreads {
    /// Starts the threads. With 0, everything runs on the thread of the caller.
    pub(crate) fn start(count: usize) -> std::io::Result<Self> {
        if count == 0 {
            return Ok(DoorThreads(None));
        }
        let mut runtime = Builder::new_multi_thread();
        Ok(DoorThreads(Some(runtime.worker_threads(count).thread_name("door").enable_all().build()?)))
    }

    /// Starts a task of a door.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.0 {
            Some(threads) => threads.spawn(task),
            None => tokio::spawn(task),
        }
    }

    /// Runs something where the doors run, so that the listeners that it opens belong there.
    pub(crate) async fn run<T: Send + 'static, E: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, TaskError<E>> {
        match self.spawn(task).await {
            Ok(outcome) => outcome.map_err(TaskError::Failed),
            Err(_) => Err(TaskError::Panicked),
        }
    }
}

impl Drop for DoorThreads {
    fn drop(&mut self) {
        // A runtime must not wait for its threads inside of another one.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}
