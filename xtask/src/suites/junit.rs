//! JUnit's XML, which suites in several languages leave: an element for each test that began.

use super::Verdicts;

/// The verdicts, by class and name of the test as far as the suite tells them.
pub(super) fn parse(xml: &str) -> Verdicts {
    xml.split("<testcase ").skip(1).filter_map(verdict).collect()
}

/// `name="test_y" classname="test.test_x.Class" ...>` and what stands in the element.
fn verdict(element: &str) -> Option<(String, String)> {
    let (attributes, rest) = element.split_once('>')?;
    let name = attribute(attributes, "name")?;
    let test = match attribute(attributes, "classname") {
        Some(class) => format!("{class}.{name}"),
        None => name.to_owned(),
    };
    let said = [("<failure", "failed"), ("<error", "error"), ("<skipped", "skipped")];
    let found = said.iter().find(|(tag, _)| rest.contains(tag));
    Some((test, found.map_or("passed", |(_, verdict)| verdict).to_owned()))
}

/// The value of `name="value"`, which another attribute's name may end with.
fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let begins = format!(" {name}=\"");
    // The first one has no space before it.
    let rest = match attributes.strip_prefix(&begins[1..]) {
        Some(rest) => rest,
        None => attributes.split_once(&begins)?.1,
    };
    Some(rest.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let xml = "<testsuites><testsuite><testcase name=\"t.A.one\" status=\"run\" \
                   result=\"completed\" time=\"0.1\" /><testcase name=\"t.A.two\" status=\"run\">\
                   <failure type=\"AssertionError\">1 != 2</failure></testcase><testcase \
                   name=\"t.A.three\" status=\"run\"><skipped>no IPv6</skipped></testcase>";
        let verdicts = parse(xml);
        assert_eq!(verdicts["t.A.one"], "passed");
        assert_eq!(verdicts["t.A.two"], "failed");
        assert_eq!(verdicts["t.A.three"], "skipped");
        assert_eq!(verdicts.len(), 3);
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_test_is_named_by_its_class_whichever_stands_first() {
        let xml = "<testcase classname=\"a.B\" name=\"one()\" time=\"0\">\n</testcase>\
                   <testcase name=\"two()\" classname=\"a.B\" time=\"0\"><error/></testcase>";
        let verdicts = parse(xml);
        assert_eq!(
            (verdicts["a.B.one()"].as_str(), verdicts["a.B.two()"].as_str()),
            ("passed", "error")
        );
    }
}
