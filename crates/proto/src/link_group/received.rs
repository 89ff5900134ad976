//! What comes over a link: which messages have a place, and what becomes of those that have none.
//!
//! | What comes | What follows |
//! |---|---|
//! | an optional type (`80` to `BF`), CDC | ignored |
//! | an unknown type, a wrong length, the other version | the link has failed |
//! | a request that only the other side may send | the link has failed |
//! | a response that no flow waits for, or over another link | ignored: it is late, or was answered twice |
//! | a step of a flow that is not under way | ignored, as by Linux: it is late |
//! | anything but TEST LINK and DELETE LINK over a link that goes | ignored |
//!
//! During first contact a failed link means that the connection stays TCP.
//!
//! *Source*: RFC 7609 §A.3, §C.7.1.

use core::time::Duration;

use sidestep_wire::clc::Version;
use sidestep_wire::llc::{
    self, AddLink, AddLinkStep, ConfirmLink, DeleteReason, DeleteScope, Form, Message,
    OPTIONAL_TYPES,
};
use sidestep_wire::{LinkUserId, cdc};

use super::flow::{FirstContact, Phase};
use super::link::LinkState;
use super::state::{LinkGroup, Role};

impl LinkGroup {
    /// A message has come over a link. CDC messages are not for the group; they only show that the
    /// link works.
    pub fn handle_message(&mut self, via: LinkUserId, bytes: &[u8], now: Duration) {
        let version = self.version();
        let Some(link) = self.link_mut(via) else { return };
        link.heard(now);
        if bytes.first().is_some_and(is_optional) {
            return;
        }
        match Message::parse(bytes) {
            Ok(message) if message.form().version() == version => {
                self.learn_form(message.form());
                self.dispatch(via, message, now);
            }
            Ok(_) | Err(_) => self.fail_link(via, DeleteReason::PROTOCOL_VIOLATION, now),
        }
        self.settle(now);
    }

    /// We write lengths as the peer does.
    fn learn_form(&mut self, form: Form) {
        if self.form.version() == Version::V2 {
            self.form = form;
        }
    }

    fn dispatch(&mut self, via: LinkUserId, message: Message, now: Duration) {
        let Some(state) = self.link(via).map(|link| link.state) else { return };
        let has_place = match (&self.phase, &message) {
            (_, Message::TestLink(_)) => true,
            (_, Message::DeleteLink(it)) if it.scope == DeleteScope::All => true,
            (Phase::Live(_), Message::DeleteLink(_)) => true,
            (Phase::Live(_), Message::ConfirmLink(_)) => state != LinkState::Deleting,
            (Phase::Live(_), _) => state == LinkState::Active,
            (Phase::FirstContact(_), Message::ConfirmLink(_)) => true,
            _ => false,
        };
        if !has_place {
            return;
        }
        match message {
            Message::ConfirmLink(it) => self.take_confirm_link(via, &it, now),
            Message::AddLink(it) => self.take_any_add_link(via, it, now),
            Message::AddLinkContinuation(it) => self.take_continuation(via, &it, now),
            Message::DeleteLink(it) if it.scope == DeleteScope::All => {
                if it.role == llc::Role::Request {
                    self.take_delete_group(&it, now);
                }
            }
            Message::DeleteLink(it) => self.take_delete_link(via, &it, now),
            Message::RequestAddLink(it) => match (it.step, self.role) {
                (AddLinkStep::Request, Role::Server) => self.take_hint(via, now),
                (AddLinkStep::Request, Role::Client) => self.violation(via, now),
                // There will be no link: as before.
                _ => {}
            },
            Message::ConfirmRkey(it) => self.take_confirm_rkey(via, &it, now),
            // With so few links a peer has no reason to send one. Linux drops them as well.
            Message::ConfirmRkeyContinuation(_) => {}
            Message::TestLink(it) => self.take_test_link(via, &it, now),
            Message::DeleteRkey(it) => self.take_delete_rkey(via, &it),
        }
    }

    fn take_confirm_link(&mut self, via: LinkUserId, message: &ConfirmLink, now: Duration) {
        let is_expected = (message.role == llc::Role::Request) == (self.role == Role::Client);
        if !is_expected {
            if message.role == llc::Role::Request {
                self.violation(via, now);
            }
            return;
        }
        match self.phase {
            Phase::FirstContact(FirstContact::Confirming { .. }) => {
                self.first_link_confirmed(message, now);
            }
            Phase::Live(_) if self.is_confirming(via) => {
                self.new_link_confirmed(via, message, now);
            }
            // Our answer is late, and the server asks again.
            Phase::Live(_)
                if self.role == Role::Client
                    && self.is_of_peer(via, message)
                    && self.link(via).is_some_and(|link| {
                        link.state == LinkState::Active && link.number == message.link_number
                    }) =>
            {
                self.confirm_link(via, llc::Role::Response);
            }
            _ => {}
        }
    }

    fn take_any_add_link(&mut self, via: LinkUserId, message: AddLink, now: Duration) {
        match (message.step, self.role) {
            (AddLinkStep::Request, Role::Client) => self.take_add_link(via, message, now),
            (AddLinkStep::Request, Role::Server) => self.take_hint(via, now),
            (_, Role::Server) => self.take_add_link_answer(via, &message, now),
            (_, Role::Client) => {}
        }
    }

    fn violation(&mut self, via: LinkUserId, now: Duration) {
        self.fail_link(via, DeleteReason::PROTOCOL_VIOLATION, now);
    }
}

/// Whether messages of this type may be ignored by a side that does not know them, or are not for us.
fn is_optional(message_type: &u8) -> bool {
    *message_type == cdc::TYPE || OPTIONAL_TYPES.contains(message_type)
}
