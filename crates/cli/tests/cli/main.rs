//! The real `sidestep`, started as a user would: help, exit statuses, error texts, and what a
//! program finds in its environment.

mod agent;
mod assess;
mod bench;
mod broker;
mod capture;
mod config;
mod decode;
mod demote;
mod doctor;
mod filters;
mod gateway;
mod generate;
mod help;
mod ip_filter;
mod monitoring;
mod rdma;
mod run;
mod ss;
mod stats;
mod support;
mod talk;
mod tshark;
mod users;
mod vip;
mod why;
