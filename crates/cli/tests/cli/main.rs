//! The real `sidestep`, started as a user would: help, exit statuses, error texts, and what a
//! program finds in its environment.

mod agent;
mod assess;
mod bench;
mod broker;
#[path = "../../../modeler/tests/report/browser.rs"]
mod browser;
mod capture;
mod config;
mod decode;
mod demote;
mod doctor;
mod doctor_fix;
mod enable;
mod filters;
#[path = "../../../modeler/tests/report/fixture.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod fixture;
mod gateway;
mod generate;
mod help;
mod host_report;
mod ip_filter;
mod libcs;
mod monitoring;
mod rdma;
mod record;
mod run;
mod ss;
mod stats;
mod support;
mod support_bundle;
mod talk;
mod tshark;
mod users;
mod vip;
mod why;
