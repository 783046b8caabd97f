//! PostgreSQL over TLS, with a server that accepts nothing else on its address.

use std::error::Error as _;

use belljar_store::{Store, StoreError};

use crate::fixture::Fixture;
use crate::postgres::Server;
use crate::samples::key;

/// Returns an error with all its causes.
fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

pub(crate) async fn server_certificate_is_verified(fixture: Fixture) {
    // Free now; it is very unlikely that another test takes it meanwhile.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = match Server::start_with_tls(port) {
        Ok(server) => server,
        Err(reason) => {
            println!("SKIPPED tls::server_certificate_is_verified: {reason}");
            return;
        }
    };
    let open = async |host: &str, options: &str| {
        let dir = server.dir().display();
        let options = options.replace("DIR", &dir.to_string());
        let url = format!("postgres://postgres@{host}:{port}/postgres?{options}");
        Store::open(&url.parse().unwrap(), &fixture.key()).await.map_err(|error| chain(&error))
    };
    let trusted = "sslmode=verify-full&sslrootcert=DIR/server.pem";
    let store = open("localhost", trusted).await.unwrap();
    store.keys().insert(&key(1)).await.unwrap();
    assert_eq!(store.keys().find_by_hash(&[1; 32]).await.unwrap(), Some(key(1)));
    store.close().await;
    for (host, options) in [
        // Another host name, but the right certificate.
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=DIR/server.pem"),
        // Encrypted, without protection against a man in the middle.
        ("localhost", "sslmode=require"),
    ] {
        open(host, options).await.unwrap().close().await;
    }
    for (host, options, why) in [
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/other.pem", "certificate"),
        ("localhost", "sslmode=verify-ca&sslrootcert=DIR/other.pem", "certificate"),
        // Not signed by a trusted authority.
        ("localhost", "sslmode=verify-full", "certificate"),
        ("127.0.0.1", trusted, "certificate"),
        ("localhost", "sslmode=verify-full&sslrootcert=DIR/none.pem", "No such file"),
        // The server's own refusal shows that the others did use TLS.
        ("localhost", "sslmode=disable", "no encryption"),
    ] {
        let refused = open(host, options).await.map(drop).unwrap_err();
        assert!(refused.contains(why), "{host} {options}: {refused}");
        assert!(
            refused.starts_with(&format!("cannot open the store postgres://postgres@{host}:{port}/postgres")),
            "{refused}"
        );
    }
}
