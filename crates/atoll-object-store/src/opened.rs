//! Opens a store, and finds out whether this node has credentials for it.
#![allow(clippy::disallowed_methods)] // Real time: this is about real networks. The simulator never comes here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};
use object_store::local::LocalFileSystem;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use super::StoreError;
use crate::{Location, Scheme};

/// How long a connection may take.
const CONNECT_TIMEOUT: &str = "2s";

/// A store that is open.
#[derive(Debug)]
pub(crate) struct Opened {
    store: Arc<dyn ObjectStore>,
    /// Where the credentials come from, if it needs some.
    credentials: Option<AwsCredentialProvider>,
    /// For how long a request waits for the first credentials.
    patience: Duration,
    /// Whether there have been credentials.
    had_some: AtomicBool,
}

impl Opened {
    /// Opens the store at a location. Credentials, the region and the endpoint come from the environment.
    pub(crate) fn at(location: &Location, timeout: Duration) -> Result<Self, StoreError> {
        match &location.scheme {
            // Names of objects begin with the directory. A put is durable: the file and its directory are synced.
            Scheme::File => Ok(Self::new(Arc::new(LocalFileSystem::new().with_fsync(true)), None, timeout)),
            Scheme::S3 { bucket } => Self::s3(AmazonS3Builder::from_env().with_bucket_name(bucket), timeout),
            Scheme::Memory => Err(StoreError::Elsewhere),
        }
    }

    fn new(
        store: Arc<dyn ObjectStore>,
        credentials: Option<AwsCredentialProvider>,
        timeout: Duration,
    ) -> Self {
        Opened { store, credentials, patience: timeout / 2, had_some: AtomicBool::new(false) }
    }

    /// Opens a bucket.
    fn s3(builder: AmazonS3Builder, timeout: Duration) -> Result<Self, StoreError> {
        // An error says that the process has a default already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let skips = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
        let store = builder
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
            .with_config(
                AmazonS3ConfigKey::Client(ClientConfigKey::Timeout),
                format!("{}ms", timeout.as_millis()),
            )
            // The protocol repeats requests itself, and reads back what it does not know.
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build()
            .map_err(|_| StoreError::Credentials)?;
        let signs = skips.is_none_or(|skips| skips != "true");
        let credentials = signs.then(|| store.credentials().clone());
        Ok(Self::new(Arc::new(store), credentials, timeout))
    }

    /// Returns the store, for a request. If the environment names no credentials, they may come from a service of the machine; without any,
    /// there is no use in a request, and its error would be that the store does not answer. Later, the store itself asks for them anew.
    pub(crate) async fn for_request(&self) -> Result<Arc<dyn ObjectStore>, StoreError> {
        if let Some(credentials) = &self.credentials
            && !self.had_some.load(Ordering::Relaxed)
        {
            match tokio::time::timeout(self.patience, credentials.get_credential()).await {
                Ok(Ok(_)) => self.had_some.store(true, Ordering::Relaxed),
                Ok(Err(_)) | Err(_) => return Err(StoreError::Credentials),
            }
        }
        Ok(self.store.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use crate::{Put, requests};

    const TIMEOUT: Duration = Duration::from_secs(4);

    fn wait<T>(f: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
    }

    fn builder(endpoint: &str) -> AmazonS3Builder {
        AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_region("eu-west-1")
            .with_endpoint(endpoint)
            .with_allow_http(true)
    }

    /// Puts an object into a store that gives this answer to every request.
    fn put_answered(answer: &'static str) -> Result<bool, StoreError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            while let Ok((mut client, _)) = listener.accept() {
                let mut head = [0; 4096];
                let _ = client.read(&mut head);
                let _ = client.write_all(answer.as_bytes());
            }
        });
        let builder = builder(&endpoint).with_access_key_id("key").with_secret_access_key("secret");
        let opened = Opened::s3(builder, TIMEOUT).unwrap();
        wait(async {
            let store = opened.for_request().await?;
            requests::put(store, "a".to_owned(), "x".into(), Put::Create).await
        })
    }

    /// An answer of S3 with this status and code.
    macro_rules! answer {
        ($status:literal, $code:literal) => {
            concat!(
                "HTTP/1.1 ",
                $status,
                "\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n<Error><Code>",
                $code,
                "</Code></Error>"
            )
        };
    }

    #[test]
    fn credentials_that_are_wrong_or_have_expired_are_named() {
        for answer in [
            answer!("403 Forbidden", "SignatureDoesNotMatch"),
            answer!("403 Forbidden", "AccessDenied"),
            answer!("401 Unauthorized", "InvalidAccessKeyId"),
            answer!("400 Bad Request", "ExpiredToken"),
            answer!("400 Bad Request", "InvalidToken"),
        ] {
            assert_eq!(put_answered(answer), Err(StoreError::Credentials), "{answer}");
        }
    }

    #[test]
    fn other_errors_keep_their_meaning() {
        for (answer, meaning) in [
            (answer!("400 Bad Request", "RequestTimeout"), StoreError::NoAnswer),
            (answer!("500 Internal Server Error", "InternalError"), StoreError::NoAnswer),
            (answer!("503 Slow Down", "SlowDown"), StoreError::NoAnswer),
            (answer!("404 Not Found", "NoSuchBucket"), StoreError::Elsewhere),
            (answer!("507 Insufficient Storage", "XMinioStorageFull"), StoreError::Full),
            ("something else than HTTP", StoreError::NoAnswer),
            ("", StoreError::NoAnswer),
        ] {
            assert_eq!(put_answered(answer), Err(meaning), "{answer}");
        }
        assert_eq!(put_answered(answer!("412 Precondition Failed", "PreconditionFailed")), Ok(false));
    }

    #[test]
    fn without_credentials_nothing_is_sent() {
        // Where nobody gives out credentials for the machine.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let of_machine = builder("http://127.0.0.1:1").with_metadata_endpoint(format!("http://{free}"));
        let opened = Opened::s3(of_machine, TIMEOUT).unwrap();
        assert_eq!(wait(opened.for_request()).map(|_| ()), Err(StoreError::Credentials));
        let half = builder("http://127.0.0.1:1").with_access_key_id("key");
        assert_eq!(Opened::s3(half, TIMEOUT).map(|_| ()).unwrap_err(), StoreError::Credentials);
    }

    #[test]
    fn what_a_file_system_refuses_is_named() {
        use std::io::ErrorKind;
        for (kind, meaning) in [
            (ErrorKind::StorageFull, StoreError::Full),
            (ErrorKind::QuotaExceeded, StoreError::Full),
            (ErrorKind::PermissionDenied, StoreError::NotAllowed),
            (ErrorKind::ReadOnlyFilesystem, StoreError::NotAllowed),
            (ErrorKind::NotADirectory, StoreError::Elsewhere),
            (ErrorKind::Interrupted, StoreError::NoAnswer),
        ] {
            let source = Box::new(std::io::Error::from(kind));
            let error = object_store::Error::Generic { store: "files", source };
            assert_eq!(requests::meaning(&error), meaning, "{kind:?}");
        }
    }
}
