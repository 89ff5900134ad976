//! Java libraries and programs from Maven's central repository, with what they depend on.

use std::fs;

use anyhow::{Context, Result};

use super::lab::{Lab, Lacking};
use super::launch::{self, Transport};

/// What fetches: a version, so that all machines take the same.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";

/// One library or program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Artifact {
    pub(super) group: &'static str,
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

impl Artifact {
    /// The class path of it and of all that it depends on. They are fetched once.
    ///
    /// **Errors**: [`Lacking`] where Maven cannot fetch them.
    pub(super) fn class_path(&self, lab: &Lab) -> Result<String> {
        let dir = format!("maven/{}-{}", self.name, self.version);
        let jars = lab.scratch.join(&dir).join("jars");
        if !jars.exists() {
            self.fetch(lab, &dir).context(Lacking)?;
        }
        Ok(jars.join("*").display().to_string())
    }

    /// All or nothing: what is there under its final name is whole.
    fn fetch(&self, lab: &Lab, dir: &str) -> Result<()> {
        let Self { group, name, version } = self;
        println!("fetching {group}:{name}:{version} ...");
        let part = lab.path(&format!("{dir}/part"));
        // Left by a run that was killed while it did this.
        let _ = fs::remove_dir_all(&part);
        let project = lab.write(&format!("{dir}/pom.xml"), self.project())?;
        let output = format!("-DoutputDirectory={part}");
        let options = ["-q", "-B", "-f", &project, "-DincludeScope=runtime", &output];
        let command = lab.command(Transport::Tcp, &[&["mvn"], &options[..], &[COPY]].concat())?;
        launch::run(command, lab.patience())?;
        fs::rename(&part, lab.scratch.join(dir).join("jars"))?;
        Ok(())
    }

    /// A project that has nothing but this dependency.
    fn project(&self) -> String {
        let Self { group, name, version } = self;
        format!(
            "<project><modelVersion>4.0.0</modelVersion>\n\
             <groupId>sidestep</groupId><artifactId>bench</artifactId><version>0</version>\n\
             <dependencies><dependency>\n\
             <groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>\n\
             </dependency></dependencies></project>\n"
        )
    }
}
