//! Waits for several futures at once, and polls them in a fixed order.

use std::future::poll_fn;
use std::task::Poll;

use atoll_core::BoxFuture;

/// Returns the results of all futures, in their order. The caller bounds their number.
pub async fn all<T: Unpin>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut is_ready = true;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
