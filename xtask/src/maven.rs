//! Java libraries and programs from Maven's central repository, with what they depend on.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::bench::launch;

/// What fetches: a version, so that all machines take the same.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";

/// How long the network may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// One library or program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Artifact {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

impl Artifact {
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
