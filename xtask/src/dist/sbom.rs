//! The bill of materials (CycloneDX): which crates are in what is shipped, and under which licences.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result};
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use cyclonedx_bom::external_models::uri::Purl;
use cyclonedx_bom::models::bom::Bom;
use cyclonedx_bom::models::component::{Classification, Component, Components};
use cyclonedx_bom::models::license::{LicenseChoice, Licenses};
use cyclonedx_bom::models::metadata;
use cyclonedx_bom::prelude::{NormalizedString, SpdxExpression};

use super::Release;

/// The packages that become the library and the command.
const SHIPPED: [&str; 2] = ["sidestep-preload", "sidestep-cli"];
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The document, as JSON.
///
/// **Errors**: cargo cannot say what the workspace depends on.
pub(super) fn of(release: &Release) -> Result<Vec<u8>> {
    let metadata = MetadataCommand::new()
        .current_dir(&release.repo)
        .features(CargoOpt::SomeFeatures(Vec::new()))
        .other_options(["--locked", "--filter-platform", TARGET].map(str::to_owned))
        .exec()
        .context("cargo metadata")?;
    let components = built_in(&metadata)?.into_iter().map(component).collect::<Result<_>>()?;
    let product = Component::new(Classification::Application, "sidestep", &release.version, None);
    let bom = Bom {
        metadata: Some(metadata::Metadata { component: Some(product), ..Default::default() }),
        components: Some(Components(components)),
        ..Bom::default()
    };
    let mut document = Vec::new();
    bom.output_as_json_v1_5(&mut document).context("the bill of materials")?;
    document.push(b'\n');
    Ok(document)
}

/// All packages that code of the shipped ones can come from, by name: no tests' and no builds' own.
fn built_in(metadata: &Metadata) -> Result<Vec<&Package>> {
    let resolve = metadata.resolve.as_ref().context("cargo has resolved nothing")?;
    let nodes: HashMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let is_shipped = |package: &&Package| SHIPPED.contains(&package.name.as_str());
    let mut open: Vec<&PackageId> =
        metadata.packages.iter().filter(is_shipped).map(|it| &it.id).collect();
    let mut known = BTreeSet::new();
    while let Some(id) = open.pop() {
        if is_macro(&metadata[id]) || !known.insert(id) {
            continue;
        }
        let below = nodes.get(id).into_iter().flat_map(|node| &node.deps).filter(|dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        });
        open.extend(below.map(|dependency| &dependency.pkg));
    }
    let mut packages: Vec<_> =
        metadata.packages.iter().filter(|it| known.contains(&it.id)).collect();
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(packages)
}

/// A crate of macros runs in the compiler.
fn is_macro(package: &Package) -> bool {
    package.targets.iter().any(cargo_metadata::Target::is_proc_macro)
}

fn component(package: &Package) -> Result<Component> {
    let version = package.version.to_string();
    let name = package.name.as_str();
    let mut component = Component::new(Classification::Library, name, &version, None);
    // Our own crates are in no registry.
    if package.source.is_some() {
        component.purl = Some(Purl::new("cargo", name, &version).with_context(|| name.to_owned())?);
    }
    component.description = package.description.as_deref().map(NormalizedString::new);
    component.licenses = package.license.as_deref().map(|words| Licenses(vec![license(words)]));
    Ok(component)
}

/// Older crates write `MIT/Apache-2.0` where SPDX has `OR`.
fn license(words: &str) -> LicenseChoice {
    LicenseChoice::Expression(SpdxExpression::new(&words.replace('/', " OR ")))
}
