//! The frame of a page: what every page of Sidestep has around its content.
//!
//! A page opens without a network, runs no script and loads nothing; its own content security policy
//! forbids both. So whatever foreign text may have got into it can only show wrong words.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// A page.
pub struct Page<'a> {
    /// What a browser shows as its title, before the name.
    pub title: &'a str,
    /// Of what it is a page: `bench`, `report`. It stands beside the mark.
    pub name: &'a str,
    /// What its last line says after that it loads nothing.
    pub note: &'a str,
    /// All between the bar at the top and the last line.
    pub content: Markup,
}

impl Page<'_> {
    /// The document.
    #[must_use]
    pub fn render(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    link rel="icon" href=(ICON);
                    title { (self.title) " – Sidestep " (self.name) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    (self.top_bar())
                    main { (self.content) }
                    footer {
                        p {
                            "Made by " code { "sidestep " (self.name) }
                            ". This page runs no script and loads nothing. " (self.note)
                        }
                    }
                }
            }
        };
        page.into_string()
    }

    fn top_bar(&self) -> Markup {
        html! {
            header class="bar-top" {
                span class="brand" { (PreEscaped(MARK)) "Sidestep " b { (self.name) } }
                fieldset class="theme" {
                    legend class="unseen" { "Colours" }
                    @for (value, name) in [("auto", "Auto"), ("light", "Light"), ("dark", "Dark")] {
                        label {
                            input type="radio" name="theme" id={ "theme-" (value) } checked[value == "auto"];
                            span { (name) }
                        }
                    }
                }
            }
        }
    }
}

/// Only the style is inline; the icon is inside its address.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

const STYLE: &str = include_str!("page.css");

/// A step to the side.
const MARK: &str = "<svg class=\"mark\" viewBox=\"0 0 32 32\" aria-hidden=\"true\"><rect width=\"32\" height=\"32\" rx=\"8\"/><path d=\"M7 22h7V11h11\"/><circle cx=\"7\" cy=\"22\" r=\"2.6\"/><circle cx=\"25\" cy=\"11\" r=\"2.6\"/></svg>";

/// [`MARK`] as an address.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Crect width='32' height='32' rx='8' fill='%230a5bd3'/%3E%3Cpath d='M7 22h7V11h11' fill='none' stroke='white' stroke-width='3'/%3E%3C/svg%3E";
