//! Java libraries and programs from Maven's central repository, with what they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::bench::launch;

/// What fetches: a version, so that all machines take the same.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";

/// How long the network may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// One library or program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Artifact<'a> {
    pub(crate) group: &'a str,
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
}

impl Artifact<'_> {
    /// The class path of it and of all that it depends on.
    ///
    /// **Errors**: as for [`class_path`].
    pub(crate) fn class_path(&self, scratch: &Path) -> Result<String> {
        class_path(&[*self], scratch)
    }
}

/// The class path of some libraries, the first of which gives it its place below `scratch`, and of all that they depend
/// on. They are fetched once.
///
/// **Errors**: Maven cannot fetch them.
pub(crate) fn class_path(artifacts: &[Artifact], scratch: &Path) -> Result<String> {
    let Artifact { name, version, .. } = artifacts[0];
    let place = scratch.join(format!("maven/{name}-{version}"));
    let jars = place.join("jars");
    if !jars.exists() {
        println!("fetching {name} {version} ...");
        let part = place.join("part");
        // Left by a run that was killed while it did this.
        let _ = fs::remove_dir_all(&part);
        fs::create_dir_all(&place)?;
        let project = place.join("pom.xml");
        fs::write(&project, project_of(artifacts))?;
        let output = format!("-DoutputDirectory={}", part.display());
        let mut command = Command::new("mvn");
        command.args(["-q", "-B", "-DincludeScope=runtime", &output, COPY, "-f"]).arg(&project);
        launch::run(command, PATIENCE)?;
        // All or nothing: what is there under its final name is whole.
        fs::rename(&part, &jars)?;
    }
    Ok(jars.join("*").display().to_string())
}

/// Compares the libraries of a class path with what is known of them, by their names: SHA-256 in hexadecimal digits.
///
/// **Errors**: one has another sum, is not known, or is known and not there; the text says which, and its sum.
pub(crate) fn verify(class_path: &str, sums: &BTreeMap<String, String>) -> Result<()> {
    let jars = Path::new(class_path).parent().context("a class path is a folder's content")?;
    let mut complaints = Vec::new();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(jars)? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let sum = sha256_of(&file)?;
        if sums.get(&name) != Some(&sum) {
            complaints.push(format!("{name:?} = \"{sum}\""));
        }
        found.insert(name);
    }
    let absent = sums.keys().filter(|name| !found.contains(*name));
    complaints.extend(absent.map(|name| format!("{name:?} is not there")));
    ensure!(
        complaints.is_empty(),
        "libraries of {} are not the known ones; where this is no accident, remove that folder or correct the \
         sums:\n{}",
        jars.display(),
        complaints.join("\n")
    );
    Ok(())
}

fn sha256_of(file: &Path) -> Result<String> {
    let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A project that has nothing but these dependencies.
fn project_of(artifacts: &[Artifact]) -> String {
    let dependency = |Artifact { group, name, version }: &Artifact| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>\
             <version>{version}</version></dependency>\n"
        )
    };
    let dependencies: String = artifacts.iter().map(dependency).collect();
    format!(
        "<project><modelVersion>4.0.0</modelVersion>\n\
         <groupId>sidestep</groupId><artifactId>tests</artifactId><version>0</version>\n\
         <dependencies>\n{dependencies}</dependencies></project>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_of_another_sum_is_refused_and_named() -> Result<()> {
        let dir = tempdir()?;
        fs::write(dir.join("a-1.jar"), "abc")?;
        let class_path = dir.join("*").display().to_string();
        let known = |name: &str, sum: &str| BTreeMap::from([(name.to_owned(), sum.to_owned())]);
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        verify(&class_path, &known("a-1.jar", abc))?;

        let other = verify(&class_path, &known("a-1.jar", "00")).unwrap_err().to_string();
        assert!(other.contains(&format!("\"a-1.jar\" = \"{abc}\"")), "{other}");
        let unknown = verify(&class_path, &known("b-1.jar", abc)).unwrap_err().to_string();
        assert!(unknown.contains("\"b-1.jar\" is not there"), "{unknown}");
        fs::remove_dir_all(dir)?;
        Ok(())
    }

    fn tempdir() -> Result<std::path::PathBuf> {
        let dir = std::env::temp_dir().join(format!("sidestep-maven-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}
