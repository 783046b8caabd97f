//! `belljar events`.

use belljar_client::v1;

use super::link::Link;
use super::server_args::EventsArgs;
use super::show::{distance, print};
use super::values;
use crate::message::{Quit, one_line, say};

/// Prints past events of the service, and follows new ones if asked to.
pub(super) async fn run(link: &Link, args: &EventsArgs) -> Result<u8, Quit> {
    let request = v1::EventsRequest {
        kinds: args.kind.clone(),
        labels: values::labels(&args.label)?.into_iter().collect(),
        sandbox: args.sandbox.clone().unwrap_or_default(),
        after: args.after.clone().unwrap_or_default(),
        follow: args.follow,
        ..Default::default()
    };
    let mut events = link.client.events(request).await?;
    while let Some(event) = events.next().await? {
        if link.json(&event)? {
            continue;
        }
        if link.quiet {
            if !event.id.is_empty() {
                print(&format!("{}\n", event.id))?;
            }
            continue;
        }
        if event.kind == "missed" {
            let count = event.missed.map_or_else(|| "some".to_owned(), |count| count.to_string());
            say(&format!("{count} events are no longer available"));
            continue;
        }
        let process = event.process.map(|process| format!(" process {process}")).unwrap_or_default();
        let (at, detail) = (distance(&event.at), one_line(&event.detail, 200));
        let line = format!("{at:>12}  {:<18}  {:<20}{process}  {detail}", event.kind, event.sandbox);
        print(&format!("{}\n", line.trim_end()))?;
    }
    Ok(0)
}
