//! The routes of version 1, by resource.

mod approvals;
mod archive;
mod attach;
mod audit;
mod builds;
mod code;
mod content;
mod contexts;
pub(crate) mod deferred;
mod disposition;
mod events;
mod exec;
mod files;
mod images;
mod keys;
mod network;
mod openapi;
mod ports;
mod processes;
mod range;
mod sandboxes;
mod screen;
mod search;
mod secrets;
mod server;
mod session;
mod sessions;
mod signed;
mod templates;
mod tools;
pub(crate) mod types;
mod upload;
mod volumes;
mod watch;

use axum::Router;
use axum::routing::{any, get};
use http::Method;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use content::{check_length, send_file};
pub use openapi::{openapi, openapi_json};
pub(crate) use ports::{PortAddresses, base_url};
pub(crate) use sandboxes::check_limit;
pub(crate) use secrets::MAX_SECRETS_PAGE;

use crate::api::Shared;
use crate::extract::refuse_keys;
use crate::facade::{Claims, Facade, Form, Head};
use crate::guard::wants_page;
use crate::proxy;

/// Returns the routes that the OpenAPI document describes.
pub(crate) fn documented_routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(server::health))
        .routes(routes!(server::ready))
        .routes(routes!(server::version))
        .routes(routes!(server::metrics))
        .routes(routes!(server::document))
        .routes(routes!(server::me))
        .routes(routes!(server::engines))
        .routes(routes!(events::follow))
        .routes(routes!(server::collect))
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::get, sandboxes::update, sandboxes::delete))
        .routes(routes!(sandboxes::timeout))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(sandboxes::snapshot))
        .routes(routes!(sandboxes::fork))
        .routes(routes!(sandboxes::metrics))
        .routes(routes!(sandboxes::logs))
        .routes(routes!(sandboxes::network_log))
        .routes(routes!(sandboxes::token))
        .routes(routes!(exec::exec))
        .routes(routes!(processes::start, processes::list))
        .routes(routes!(processes::get))
        .routes(routes!(processes::output))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
        .routes(routes!(sessions::open, sessions::list))
        .routes(routes!(sessions::close))
        .routes(routes!(code::run))
        .routes(routes!(code::go_on))
        .routes(routes!(contexts::create, contexts::list))
        .routes(routes!(contexts::remove))
        .routes(routes!(contexts::restart))
        .routes(routes!(contexts::interrupt))
        .routes(routes!(contexts::answer))
        .routes(routes!(attach::attach))
        .routes(routes!(attach::terminal))
        .routes(routes!(content::download, content::upload))
        .routes(routes!(files::stat))
        .routes(routes!(files::list, files::remove))
        .routes(routes!(files::make_dir))
        .routes(routes!(files::rename))
        .routes(routes!(files::change_mode))
        .routes(routes!(search::search))
        .routes(routes!(upload::upload))
        .routes(routes!(archive::pack, archive::unpack))
        .routes(routes!(watch::watch))
        .routes(routes!(signed::sign))
        .routes(routes!(signed::download, signed::upload))
        .routes(routes!(ports::publish, ports::list))
        .routes(routes!(ports::unpublish))
        .routes(routes!(ports::token))
        .routes(routes!(templates::list, builds::build))
        .routes(routes!(builds::import))
        .routes(routes!(builds::export))
        .routes(routes!(builds::list))
        .routes(routes!(builds::get, builds::cancel))
        .routes(routes!(templates::get, templates::remove))
        .routes(routes!(images::import))
        .routes(routes!(images::export))
        .routes(routes!(images::collect))
        .routes(routes!(images::logins))
        .routes(routes!(images::log_in, images::log_out))
        .routes(routes!(volumes::create, volumes::list))
        .routes(routes!(volumes::get, volumes::remove))
        .routes(routes!(volumes::list_files, volumes::remove_files))
        .routes(routes!(volumes::stat))
        .routes(routes!(volumes::download, volumes::upload))
        .routes(routes!(volumes::make_dir))
        .routes(routes!(volumes::rename))
        .routes(routes!(volumes::change_mode))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::update, keys::revoke))
        .routes(routes!(session::create, session::end))
        .routes(routes!(session::redeem))
        .routes(routes!(session::link))
        .routes(routes!(secrets::create, secrets::list))
        .routes(routes!(secrets::get, secrets::update, secrets::remove))
        .routes(routes!(network::offer))
        .routes(routes!(network::check))
        .routes(routes!(screen::screen))
        .routes(routes!(tools::create, tools::list))
        .routes(routes!(tools::get, tools::update, tools::remove))
        .routes(routes!(tools::schema, tools::draft_schema))
        .routes(routes!(tools::test))
        .routes(routes!(tools::call))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::deny))
        .routes(routes!(audit::records))
        .routes(routes!(audit::export))
        .routes(routes!(audit::verify))
        .routes(routes!(audit::archive))
}

/// The facade.
pub(crate) struct Rest(pub(crate) Shared);

impl Facade for Rest {
    fn name(&self) -> &'static str {
        "rest"
    }

    fn claims(&self) -> Claims {
        let prefixes = &["/v1/", "/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs"];
        Claims { prefixes, ..Claims::default() }
    }

    fn form(&self, _head: Head<'_>) -> Form {
        Box::new(|problem, request_id| problem.answer(request_id))
    }

    fn router(&self) -> Router {
        router(&self.0)
    }

    fn takes_sessions(&self) -> bool {
        true
    }

    fn may_always_begin(&self, head: Head<'_>) -> bool {
        head.path.rsplit_once('/').is_some_and(|(_, action)| ENDING.contains(&action))
    }

    fn is_open(&self, head: Head<'_>) -> bool {
        let config = &self.0.config;
        match head.path {
            "/health" | "/ready" | "/version" | REDEEM => true,
            "/" => head.method == Method::GET && wants_page(head.headers),
            "/metrics" => config.open_metrics,
            "/openapi.json" | "/docs" => config.open_docs,
            path if path.starts_with("/docs/") => config.open_docs,
            path => path.starts_with("/v1/signed/") || proxy::is_by_path(path),
        }
    }

    fn keeps_open_body(&self, head: Head<'_>) -> bool {
        head.path == REDEEM
    }
}

/// The path that turns a link into a session.
const REDEEM: &str = "/v1/session/redeem";

/// Last segments of paths with the method POST that end something.
const ENDING: [&str; 4] = ["signal", "interrupt", "pause", "deny"];

/// Paths with the method POST that obey the header `Idempotency-Key`.
const KEYED: [&str; 3] = ["/v1/sandboxes", "/v1/sandboxes/{id}/exec", "/v1/sandboxes/{id}/code"];

/// Returns all routes.
fn router(shared: &Shared) -> Router {
    let (router, _) = documented_routes().split_for_parts();
    let reason = "only making a sandbox and running a command or code have one; leave it out";
    let router = refuse_keys(router, &KEYED, reason);
    // Not an endpoint of the interface: programs get the error of every unknown path.
    let mut router = router.route("/", get(server::home));
    for path in [proxy::PATH, proxy::PATH_SLASH, proxy::PATH_BARE] {
        router = router.route(path, any(proxy::by_path));
    }
    router.merge(openapi::swagger()).with_state(shared.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_keys_that_are_obeyed() {
        let document = serde_json::to_value(openapi()).unwrap();
        let has_key = |operation: &serde_json::Value| {
            let parameters = operation["parameters"].as_array();
            parameters.is_some_and(|all| all.iter().any(|one| one["name"] == "Idempotency-Key"))
        };
        let paths = document["paths"].as_object().unwrap().iter();
        let mut keyed: Vec<&str> =
            paths.filter(|(_, path)| has_key(&path["post"])).map(|(path, _)| path.as_str()).collect();
        keyed.sort_unstable();
        let mut expected = KEYED;
        expected.sort_unstable();
        assert_eq!(keyed, expected);
    }
}
