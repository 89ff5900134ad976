//! Whether the links of a site lead somewhere: to a file of it, and to a heading of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

/// **Errors**: one leads nowhere; all are named.
pub(super) fn links(site: &Path) -> Result<()> {
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(site)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "html") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pages.insert(name, fs::read_to_string(&path)?);
        }
    }
    ensure!(!pages.is_empty(), "{} has no page", site.display());
    let headings: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(name, text)| (name.as_str(), values(text, "id").collect())).collect();
    let leads_somewhere = |page: &str, link: &str| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let file = if file.is_empty() { page } else { file };
        let has_heading = || headings.get(file).is_some_and(|known| known.contains(heading));
        site.join(file).exists() && (heading.is_empty() || has_heading())
    };
    let mut dead = Vec::new();
    for (page, text) in &pages {
        let links = ["href", "src"].into_iter().flat_map(|it| values(text, it));
        let own = links.filter(|link| !link.contains(':') && !link.starts_with("//"));
        dead.extend(own.filter(|it| !leads_somewhere(page, it)).map(|it| format!("{page}: {it}")));
    }
    ensure!(dead.is_empty(), "links that lead nowhere: {}", dead.join(", "));
    Ok(())
}

/// The values of an attribute.
fn values<'t>(text: &'t str, attribute: &str) -> impl Iterator<Item = &'t str> {
    let begin = format!(" {attribute}=\"");
    let parts: Vec<_> = text.split(begin.as_str()).skip(1).collect();
    parts.into_iter().filter_map(|it| Some(it.split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::place;

    #[test]
    fn dead_files_and_headings_are_found() -> Result<()> {
        let site = place::scratch_dir(&place::repo_root()?, "test-site-links")?;
        let put = |links: &str| fs::write(site.join("a.html"), links);
        fs::write(site.join("b.html"), "<h2 id=\"here\">")?;
        put("<a href=\"b.html#here\"> <a href=\"https://x.org/a\"> <img src=\"b.html\">")?;
        links(&site)?;
        for dead in ["c.html", "b.html#there", "#here"] {
            put(&format!("<a href=\"{dead}\">"))?;
            let error = links(&site).unwrap_err().to_string();
            assert_eq!(error, format!("links that lead nowhere: a.html: {dead}"));
        }
        fs::remove_dir_all(site)?;
        Ok(())
    }
}
