//! The tables `[[registers]]`: stores outside of the cluster where the chains of logs can be.

use std::collections::BTreeMap;

use atoll_node::places::{MAX_PLACES, check_url, is_name};

use super::reader::{Source, Tables, text};
use super::settings::of_section;

/// Reads the tables, and has each URL checked by the protocol that serves its scheme.
pub(super) fn read(source: &mut Source<'_>, tables: &Tables<'_>) -> Option<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    let mut complete = true;
    for table in tables.all("registers") {
        let name = table.need(source, "name", |v| text(v).filter(|name| is_name(name)));
        let url = table.need(source, "url", |v| text(v).filter(|url| url.contains("://")));
        let (Some(name), Some(url)) = (name, url) else {
            complete = false;
            continue;
        };
        if let Err(error) = check_url(&url) {
            let allowed = of_section("registers").find(|s| s.key == "url").map_or("", |s| s.allowed);
            let what = format!("`registers.url` of {name:?} is refused: {error}; allowed: {allowed}");
            source.fault(table.place("url"), what);
        }
        if out.insert(name.clone(), url).is_some() {
            let what = format!("`registers.name` is {name:?} a second time; allowed: each name once");
            source.fault(table.place("name"), what);
        }
        if out.len() > MAX_PLACES {
            let what = format!("more than {MAX_PLACES} [[registers]] tables; allowed: {MAX_PLACES}");
            source.fault(table.place("name"), what);
            return None;
        }
    }
    complete.then_some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::super::config::{Config, Overrules};
    use super::*;

    fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
        let over = Overrules { data: Some("d".into()), ..Overrules::default() };
        let config = Config::parse(Path::new("node.toml"), text, &over);
        config.map(|config| config.registers).map_err(|faults| faults.to_string())
    }

    #[test]
    fn stores_are_read_by_name() {
        let two = "[[registers]]\nname = \"e\"\nurl = \"etcd://a:1/x\"\n[[registers]]\nname = \"s\"\nurl = \"s3://b/x\"\n";
        let pair = |name: &str, url: &str| (name.to_owned(), url.to_owned());
        assert_eq!(parse(two), Ok([pair("e", "etcd://a:1/x"), pair("s", "s3://b/x")].into()));
        assert_eq!(parse(""), Ok([].into()));
    }

    #[test]
    fn what_cannot_be_a_store_is_refused_and_no_secret_is_repeated() {
        for (name, url, part) in [
            ("home", "etcd://a:1/x", "`registers.name` is"),
            ("a/b", "etcd://a:1/x", "`registers.name` is"),
            ("e", "etcd://user:hunter2@a:1/x", "HOST:PORT"),
            ("e", "etcd://a:1", "prefix"),
            ("e", "file:///tmp/hunter2", "scheme"),
            ("e", "hunter2@a:1", "not shown"),
            ("e", "zookeeper://a:1/zookeeper", "other than /zookeeper"),
            ("e", "s3://key:hunter2@b/x", "s3://BUCKET/PREFIX"),
        ] {
            let faults = parse(&format!("[[registers]]\nname = \"{name}\"\nurl = \"{url}\"\n")).unwrap_err();
            assert!(faults.contains(part) && !faults.contains("hunter2"), "{url}: {faults}");
        }
        let twice = "[[registers]]\nname = \"e\"\nurl = \"etcd://a:1/x\"\n".repeat(2);
        assert!(parse(&twice).unwrap_err().contains("a second time"));
    }

    #[test]
    fn all_schemes_of_the_program_are_named() {
        let allowed = of_section("registers").find(|s| s.key == "url").unwrap().allowed;
        for form in atoll_node::places::forms().filter(|form| !form.starts_with("memory:")) {
            assert!(allowed.contains(form), "{form}: {allowed}");
        }
    }
}
