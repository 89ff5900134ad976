//! Texts without secrets.
//!
//! The parts of a bundle have none by their making: no command prints the contents of a key. This is for
//! what an operator may have written where none belongs: in an address (`http://user:password@host`), in
//! the value of a key that names a secret, and in what a mistake of the configuration quotes.

use serde_json::{Map, Value};

/// The text of a part; a JSON document by its values, anything else by its words.
pub(super) fn text(part: &str) -> String {
    let Ok(mut document) = serde_json::from_str::<Value>(part) else { return words(part) };
    value(&mut document);
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn value(document: &mut Value) {
    match document {
        Value::String(text) => *text = words(text),
        Value::Array(values) => values.iter_mut().for_each(value),
        Value::Object(object) => {
            members(object);
            object.values_mut().for_each(value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Values of keys that name a secret, whether they are members of their own or a pair of `key` and `value`,
/// as `config check` has them; and what mistakes quote.
fn members(object: &mut Map<String, Value>) {
    let says_secret = object.get("key").and_then(Value::as_str).is_some_and(is_secret);
    for (name, value) in object.iter_mut() {
        let is_its_value = says_secret && name == "value";
        if is_its_value || is_secret(name) && value.is_string() && name != "key" {
            *value = LEFT_OUT.into();
        }
        if name == "mistakes" {
            quotations(value);
        }
    }
}

fn is_secret(name: &str) -> bool {
    let last = name.rsplit(['.', '_', '-']).next().unwrap_or_default().to_ascii_lowercase();
    SECRETS.contains(&last.as_str())
}

/// A mistake quotes the word that it complains of.
fn quotations(mistakes: &mut Value) {
    for mistake in mistakes.as_array_mut().into_iter().flatten() {
        let Some(text) = mistake.as_str() else { continue };
        let parts = text.split('`').enumerate();
        let parts = parts.map(|(i, part)| if i % 2 == 1 { LEFT_OUT } else { part });
        *mistake = parts.collect::<Vec<_>>().join("`").into();
    }
}

/// Addresses without the name and the password before their host.
fn words(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + "://".len());
        redacted += before;
        let host = behind.find(|c: char| c == '/' || c.is_whitespace() || "\"'`,".contains(c));
        let authority = &behind[..host.unwrap_or(behind.len())];
        if let Some(user) = authority.rfind('@') {
            redacted += LEFT_OUT;
            rest = &behind[user..];
        } else {
            rest = behind;
        }
    }
    redacted + rest
}

/// Last words of the names of keys.
const SECRETS: [&str; 8] =
    ["key", "password", "passphrase", "secret", "token", "psk", "credential", "credentials"];
const LEFT_OUT: &str = "(left out)";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_lose_their_passwords_and_nothing_else() {
        let told = words("store = http://admin:hunter2@10.0.0.5:2379/x and https://a.b/c@d, x@y");
        assert_eq!(told, "store = http://(left out)@10.0.0.5:2379/x and https://a.b/c@d, x@y");
        assert_eq!(words("http://a:p@ss@host"), "http://(left out)@host");
        assert_eq!(words("://"), "://");
    }

    #[test]
    fn values_of_secrets_and_quotations_are_left_out() {
        let document = json!({
            "keys": [
                { "key": "tls.inbound.web.key", "value": "/etc/x.pem", "file": "/etc/a" },
                { "key": "smc.rmbe_size", "value": "64KB", "file": null }
            ],
            "token": "abc",
            "api_password": "abc",
            "monkey": "stays",
            "mistakes": ["/etc/a:3: smc.spin: `hunter2` is not one of: auto, never"]
        });
        let told: Value = serde_json::from_str(&text(&document.to_string())).unwrap();
        assert_eq!(told["keys"][0]["value"], LEFT_OUT);
        assert_eq!(told["keys"][0]["key"], "tls.inbound.web.key");
        assert_eq!(told["keys"][1], document["keys"][1]);
        assert_eq!([&told["token"], &told["api_password"]], [LEFT_OUT, LEFT_OUT]);
        assert_eq!(told["monkey"], "stays");
        let mistake = "/etc/a:3: smc.spin: `(left out)` is not one of: auto, never";
        assert_eq!(told["mistakes"][0], mistake);
    }
}
