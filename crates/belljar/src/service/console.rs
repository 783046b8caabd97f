//! `belljar console`: a link that signs in to the console.

use std::time::Duration;

use belljar_client::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::link::Link;
use super::show::{print, rough};
use crate::message::{Quit, say};

#[derive(Deserialize)]
struct SessionLink {
    path: String,
    expires_at: Timestamp,
}

/// Prints a link that signs in to the console as the caller, once.
pub(crate) async fn print_link(link: &Link) -> Result<u8, Quit> {
    let Some(url) = &link.url else {
        return Err(Quit::Usage(
            "console: a browser cannot reach this server, which has a socket alone; start belljar serve, and name it with --server"
                .to_owned(),
        ));
    };
    let made: Value = link.client.send(Method::POST, "/v1/session/links", &Value::Null).await?;
    let SessionLink { path, expires_at } = serde_json::from_value(made)?;
    let whole = format!("{}{path}", url.trim_end_matches('/'));
    if !link.json(&json!({"url": whole, "expires_at": expires_at}))? {
        print(&format!("{whole}\n"))?;
        if !link.quiet {
            let left = Duration::try_from(expires_at.duration_since(Timestamp::now())).unwrap_or_default();
            say(&format!("it can be used once, within {}", rough(left)));
        }
    }
    Ok(0)
}
