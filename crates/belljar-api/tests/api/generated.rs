//! Every field and every parameter of the OpenAPI document with invalid values, generated from the document so that no new field
//! can be forgotten. Only requests that must be refused are sent, so nothing happens.

use belljar_api::openapi_json;
use serde_json::{Map, Value, json};

use crate::client::{Answer, Client};
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![invalid_fields_are_refused, invalid_parameters_are_refused];

/// Returns a value of each type, by the document's name of the type.
fn kinds() -> [(&'static str, Value); 8] {
    [
        ("null", Value::Null),
        ("boolean", json!(true)),
        ("integer", json!(7)),
        ("number", json!(7.5)),
        ("string", json!("seven")),
        ("array", json!([])),
        ("array", json!([null, null, null])),
        ("object", json!({})),
    ]
}

struct Document(Value);

impl Document {
    fn new() -> Self {
        Self(serde_json::from_str(&openapi_json()).unwrap())
    }

    /// Returns the method, path and description of each operation.
    fn operations(&self) -> Vec<(String, String, &Value)> {
        let mut all = Vec::new();
        for (path, item) in self.0["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                all.push((method.to_uppercase(), path.clone(), operation));
            }
        }
        all
    }

    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let Some(name) = schema["$ref"].as_str() else { return schema };
        &self.0["components"]["schemas"][name.rsplit('/').next().unwrap()]
    }

    /// Returns the alternatives of a schema: the schema itself, or those of `oneOf`.
    fn forms<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolved(schema);
        let of = |name: &str| schema[name].as_array();
        match of("oneOf").or_else(|| of("anyOf")) {
            Some(forms) => forms.iter().flat_map(|form| self.forms(form)).collect(),
            None => vec![schema],
        }
    }

    /// Returns the names of the types that a value may have.
    fn kinds_of(&self, schema: &Value) -> Vec<String> {
        let mut kinds = Vec::new();
        for form in self.forms(schema) {
            match &form["type"] {
                Value::String(kind) => kinds.push(kind.clone()),
                Value::Array(several) => {
                    kinds.extend(several.iter().map(|one| one.as_str().unwrap().to_owned()))
                }
                _ => {}
            }
        }
        if kinds.iter().any(|kind| kind == "number") {
            kinds.push("integer".to_owned());
        }
        kinds
    }

    /// Returns bodies with an invalid value at `place`, each with the invalid field.
    fn invalid_values(&self, schema: &Value, place: &Place) -> Vec<(Place, Value)> {
        let kinds_taken = self.kinds_of(schema);
        assert!(!kinds_taken.is_empty(), "{place:?} has no type: {schema}");
        let is_taken = |kind: &str| kinds_taken.iter().any(|taken| taken == kind);
        let mut invalid_values: Vec<(Place, Value)> = kinds()
            .into_iter()
            // Null is the same as omitted, wherever a field is optional.
            .filter(|(kind, _)| *kind != "null" && !is_taken(kind))
            .map(|(_, value)| (place.clone(), value))
            .collect();
        for form in self.forms(schema) {
            invalid_values.extend(out_of_range(form).into_iter().map(|value| (place.clone(), value)));
            if !form["enum"].is_null() {
                invalid_values.push((place.clone(), json!("no such word")));
            }
            if !form["properties"].is_null() {
                invalid_values.extend(self.invalid_fields_of(form, place));
            }
            if form["items"].is_object() {
                let item = place.item();
                invalid_values.extend(
                    self.invalid_values(&form["items"], &item)
                        .into_iter()
                        .filter(|(found, _)| found.is_below(&item)),
                );
            }
            if form["additionalProperties"].is_object() {
                let entry = place.field("KEY");
                invalid_values.extend(self.invalid_values(&form["additionalProperties"], &entry));
            }
        }
        invalid_values
    }

    /// Returns such bodies for each field of an object, and for an unknown field.
    fn invalid_fields_of(&self, object: &Value, place: &Place) -> Vec<(Place, Value)> {
        assert_eq!(object["additionalProperties"], false, "{place:?} takes anything: {object}");
        let mut invalid_values = vec![(place.field("no_such_field"), json!(1))];
        for (name, schema) in object["properties"].as_object().unwrap() {
            invalid_values.extend(self.invalid_values(schema, &place.field(name)));
        }
        for name in object["required"].as_array().into_iter().flatten() {
            invalid_values.push((place.field(name.as_str().unwrap()), Value::Null));
        }
        invalid_values
    }
}

/// Returns numbers outside the range of a schema.
fn out_of_range(form: &Value) -> Vec<Value> {
    let number = |name: &str| form[name].as_i64();
    let mut invalid_values: Vec<Value> = Vec::new();
    invalid_values.extend(number("minimum").map(|least| json!(least - 1)));
    invalid_values.extend(number("maximum").map(|most| json!(most + 1)));
    match form["format"].as_str() {
        Some("int32" | "uint32") => invalid_values.push(json!(1_u64 << 32)),
        Some("int64" | "uint64") => invalid_values.push(json!(1e30)),
        Some("uint16") => invalid_values.push(json!(1 << 16)),
        _ => {}
    }
    invalid_values
}

/// Path of a value in a body.
#[derive(Debug, Clone, PartialEq)]
struct Place(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// The first item of a list.
    Item,
}

impl Place {
    fn field(&self, name: &str) -> Self {
        Self([self.0.as_slice(), &[Step::Field(name.to_owned())]].concat())
    }

    fn item(&self) -> Self {
        Self([self.0.as_slice(), &[Step::Item]].concat())
    }

    fn is_below(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Returns the name that a problem has for it.
    fn name(&self) -> String {
        let mut name = String::new();
        for step in &self.0 {
            match step {
                Step::Field(field) if name.is_empty() => name.push_str(field),
                Step::Field(field) => name.extend([".", field]),
                Step::Item => name.push_str("[0]"),
            }
        }
        name
    }

    /// Replaces the value at this path in `whole`. Null removes it.
    fn put(&self, whole: &mut Value, value: Value) {
        let Some((last, above)) = self.0.split_last() else {
            *whole = value;
            return;
        };
        let mut at = whole;
        for step in above {
            at = Self::step(at, step);
        }
        match last {
            Step::Field(name) if value.is_null() => drop(object(at).remove(name)),
            step => *Self::step(at, step) = value,
        }
    }

    fn step<'a>(at: &'a mut Value, step: &Step) -> &'a mut Value {
        match step {
            Step::Field(name) => object(at).entry(name.clone()).or_insert(Value::Null),
            Step::Item => {
                if at.as_array().is_none_or(Vec::is_empty) {
                    *at = json!([null]);
                }
                &mut at[0]
            }
        }
    }
}

/// Returns the object at this path, creating it if needed.
fn object(at: &mut Value) -> &mut Map<String, Value> {
    if !at.is_object() {
        *at = json!({});
    }
    at.as_object_mut().unwrap()
}

/// Returns the path with existing ids.
fn with_existing_ids(path: &str, id: &str) -> String {
    let id = if path.starts_with("/v1/templates/") { "default" } else { id };
    let path = path
        .replace("{id}", id)
        .replace("{process}", "1")
        .replace("{session}", "1")
        .replace("{context}", "python");
    path.replace("{port}", "8000").replace("{token}", "x")
}

async fn invalid_fields_are_refused(fixture: Fixture) {
    let user = fixture.client("default", belljar_model::Role::Admin).await;
    let id = sandbox(&user).await;
    let document = Document::new();
    let (mut faults, mut tried) = (Vec::new(), 0);
    for (method, path, operation) in document.operations() {
        let content = &operation["requestBody"]["content"]["application/json"];
        if content.is_null() {
            continue;
        }
        let form = document.resolved(&content["schema"]);
        let mut cases = document.invalid_fields_of(form, &Place(Vec::new()));
        for (_, value) in kinds().into_iter().filter(|(kind, _)| *kind != "object") {
            cases.push((Place(Vec::new()), value));
        }
        for (place, value) in cases {
            let mut body = form["example"].clone();
            assert!(body.is_object(), "{method} {path} has no example");
            place.put(&mut body, value);
            let answer = user.json(&method, &with_existing_ids(&path, &id), &body).await;
            tried += 1;
            if !is_refused(&answer, &place.name()) {
                faults.push(format!("{method} {path} {body}: {}: {answer:?}", place.name()));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {tried}: {faults:#?}", faults.len());
    assert!(tried > 700, "{tried}");
    assert_eq!(sh(&user, &id, "ls -A; echo whole").await["stdout"]["data"], "whole\n");
}

/// Reports whether the answer names this field as invalid.
fn is_refused(answer: &Answer, field: &str) -> bool {
    if answer.status != 400 {
        return false;
    }
    let (code, named) = answer.problem();
    let named = named.unwrap_or_default();
    // If an object was created for one field, another required field may be reported first.
    let of = |name: &str| name.rsplit_once('.').map(|(object, _)| object.to_owned());
    let is_beside = of(&named).is_some() && of(&named) == of(field);
    let is_missed = answer.json()["detail"].as_str().is_some_and(|detail| detail.contains("missing field"));
    code == "invalid_field" && (named == field || (is_beside && is_missed))
}

async fn invalid_parameters_are_refused(fixture: Fixture) {
    let user = fixture.client("default", belljar_model::Role::Admin).await;
    let id = sandbox(&user).await;
    let document = Document::new();
    let (mut faults, mut tried) = (Vec::new(), 0);
    for (method, path, operation) in document.operations() {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let in_query: Vec<_> = parameters.iter().filter(|one| one["in"] == "query").collect();
        for parameter in &in_query {
            let name = parameter["name"].as_str().unwrap();
            for value in invalid_texts(&document, &parameter["schema"]) {
                let query = format!("{name}={value}");
                tried += 1;
                faults.extend(
                    send_invalid_query(&user, &method, &with_existing_ids(&path, &id), &query, name).await,
                );
            }
            if document.kinds_of(&parameter["schema"]).iter().all(|kind| kind != "array") {
                let query = format!("{name}=1&{name}=1");
                tried += 1;
                faults.extend(
                    send_invalid_query(&user, &method, &with_existing_ids(&path, &id), &query, name).await,
                );
            }
        }
        if !in_query.is_empty() {
            let query = "no_such_parameter=1";
            tried += 1;
            faults.extend(
                send_invalid_query(
                    &user,
                    &method,
                    &with_existing_ids(&path, &id),
                    query,
                    "no_such_parameter",
                )
                .await,
            );
        }
        for name in
            ["process", "session", "port"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")))
        {
            for invalid in ["x", "-1", "99999999999999999999", "1x", "%00", "%F0%9F"] {
                let path = with_existing_ids(&path.replace(&format!("{{{name}}}"), invalid), &id);
                let answer = user.call(&method, &path).await;
                tried += 1;
                // Nothing has that name, or the text cannot be a name.
                let missing = format!("{name}_not_found");
                if (answer.status != 404 || answer.problem().0 != missing) && answer.status != 400 {
                    faults.push(format!("{method} {path}: {answer:?}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} of {tried}: {faults:#?}", faults.len());
    assert!(tried > 150, "{tried}");
}

/// Returns invalid values of a parameter, as encoded in a query.
fn invalid_texts(document: &Document, schema: &Value) -> Vec<String> {
    let kinds = document.kinds_of(schema);
    let takes = |kind: &str| kinds.iter().any(|taken| taken == kind);
    let mut invalid_values = Vec::new();
    for form in document.forms(schema) {
        invalid_values.extend(out_of_range(form).into_iter().map(|number| number.to_string()));
        if !form["enum"].is_null() {
            invalid_values.push("no-such-word".to_owned());
        }
    }
    if !takes("string") && !takes("array") {
        // An empty value is the same as an omitted one.
        invalid_values.extend(["x", "%00", "%FF", "1.5", "[]", "null"].map(str::to_owned));
    }
    invalid_values
}

/// Sends a request that is valid except for its query. Returns a description of the answer if it does not refuse `field`.
async fn send_invalid_query(
    user: &Client,
    method: &str,
    path: &str,
    query: &str,
    field: &str,
) -> Option<String> {
    let mut request = user.request(method, &format!("{path}?{query}"));
    if path.ends_with("/attach") || path.ends_with("/terminal") {
        for (name, value) in [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ] {
            request = request.header(name, value);
        }
    }
    let request = request.body(axum::body::Body::empty()).unwrap();
    let (parts, body) = user.open(request).await.into_parts();
    if parts.status.as_u16() < 400 {
        // The body may be an endless stream.
        return Some(format!("{method} {path}?{query}: {field}: {}", parts.status));
    }
    let body = axum::body::to_bytes(axum::body::Body::new(body), 1 << 20).await.unwrap();
    let answer = Answer { status: parts.status, headers: parts.headers, body };
    (!is_refused(&answer, field)).then(|| format!("{method} {path}?{query}: {field}: {answer:?}"))
}
