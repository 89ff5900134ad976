//! The form of the document: its schema, its description, and what was promised.
//!
//! After an intended change of the form:
//! `SIDESTEP_UPDATE_SNAPSHOTS=1 cargo test -p sidestep-modeler --test schema`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::{Value, json};
use sidestep_modeler::report::json;

#[path = "report/fixture.rs"]
mod fixture;

#[test]
fn the_published_schema_is_that_of_the_code() {
    let path = docs("bench-schema.json");
    let schema = serde_json::to_string_pretty(&json::schema()).expect("JSON") + "\n";
    if env::var_os("SIDESTEP_UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &schema).expect("written");
    }
    assert_eq!(
        fs::read_to_string(&path).expect("the schema"),
        schema,
        "{} is out of date; is VERSION still right?",
        path.display()
    );
}

#[test]
fn documents_satisfy_the_schema_and_others_do_not() {
    let validator = jsonschema::validator_for(json::schema().as_value()).expect("a schema");
    let mut document = serde_json::to_value(fixture::another()).expect("JSON");
    let busy = serde_json::to_value(fixture::busy()).expect("JSON");
    let complaints: Vec<String> = validator
        .iter_errors(&document)
        .chain(validator.iter_errors(&busy))
        .map(|error| error.to_string())
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    document["results"][0]["tps"]["median"] = json!("fast");
    assert!(!validator.is_valid(&document));
    // JSON has no word for what is no number: it becomes `null`.
    let not_numbers = serde_json::to_value(fixture::hostile()).expect("JSON");
    assert!(!validator.is_valid(&not_numbers));
}

/// The keys that issue 3 promised, with the types of its example.
#[test]
fn the_promised_keys_are_where_they_were_promised() {
    let promised = json!({
        "version": 1,
        "machine": {},
        "results": [{
            "workload": "RR10(2KB/2KB)",
            "transport": "smc",
            "model": "threads",
            "runs": 5,
            "tps": {"median": 1.0, "min": 1.0, "max": 1.0},
            "response_us": {"mean": 1.0, "stddev": 1.0, "p50": 1.0, "p99": 1.0},
            "mb_per_s": 1.0,
            "cpu_us_per_tran": {"client": 1.0, "server": 1.0},
            "transport_proof": {"smc_connections": 1, "tcp_connections": 1}
        }],
        "comparisons": [{
            "workload": "RR10(2KB/2KB)",
            "model": "threads",
            "a": "smc",
            "b": "tcp",
            "throughput_ratio": 1.0,
            "ci95": [1.0, 1.0],
            "response_ratio": 1.0,
            "cpu_ratio_client": 1.0,
            "cpu_ratio_server": 1.0
        }]
    });
    let written = serde_json::to_value(fixture::document()).expect("JSON");
    assert_holds(&written, &promised, "");
    // The second cell is the one the example shows.
    assert_eq!(written["version"], promised["version"]);
    for key in ["workload", "transport", "model", "runs"] {
        assert_eq!(written["results"][1][key], promised["results"][0][key], "{key}");
    }
    for key in ["workload", "model", "a", "b"] {
        assert_eq!(written["comparisons"][0][key], promised["comparisons"][0][key], "{key}");
    }
}

#[test]
fn every_key_is_described() {
    let schema = serde_json::to_value(json::schema()).expect("JSON");
    let text = fs::read_to_string(docs("bench-json.md")).expect("the description");
    let definitions = schema["$defs"].as_object().expect("definitions");
    let whole = ("Document".to_owned(), schema.clone());
    let all = definitions.iter().map(|(name, form)| (name.clone(), form.clone()));
    let mut missing = Vec::new();
    for (name, form) in all.chain([whole]) {
        let keys = form["properties"].as_object().into_iter().flat_map(|keys| keys.keys());
        for key in keys {
            if !section(&text, &name).contains(&format!("| `{key}` |")) {
                missing.push(format!("{name}: {key}"));
            }
        }
        for word in words(&form) {
            if !section(&text, &name).contains(&format!("`{word}`")) {
                missing.push(format!("{name}: the word {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/bench-json.md does not describe {missing:#?}");
}

/// What `promised` has, `written` has in the same place with the same type; of an
/// array of objects every element has it.
fn assert_holds(written: &Value, promised: &Value, place: &str) {
    match (written, promised) {
        (Value::Object(written), Value::Object(promised)) => {
            for (key, promised) in promised {
                let place = format!("{place}.{key}");
                let written = written.get(key).unwrap_or_else(|| panic!("{place} is missing"));
                assert_holds(written, promised, &place);
            }
        }
        (Value::Array(written), Value::Array(promised)) if promised[0].is_object() => {
            assert!(!written.is_empty(), "{place} is empty");
            for written in written {
                assert_holds(written, &promised[0], &format!("{place}[]"));
            }
        }
        (Value::Array(written), Value::Array(promised)) => {
            assert_eq!(written.len(), promised.len(), "{place}");
        }
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) => {}
        _ => panic!("{place}: {written} is of another type than {promised}"),
    }
}

/// The part of the description under a heading that names this definition.
fn section<'a>(text: &'a str, definition: &str) -> &'a str {
    let heading = format!("`{definition}`");
    let mut parts = text.split("\n## ");
    parts.find(|part| part.lines().next().is_some_and(|line| line.contains(&heading))).unwrap_or("")
}

/// The values that a definition of words allows.
fn words(form: &Value) -> Vec<&str> {
    let listed = form["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let each = form["oneOf"].as_array().into_iter().flatten();
    listed.chain(each.filter_map(|choice| choice["const"].as_str())).collect()
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}
