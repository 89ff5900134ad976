//! What a type promises about its bytes, derived from its fields.
//!
//! The traits stand in `sidestep_device::valid`, which says what each of them promises:
//!
//! ```text
//!   Zeroable   each field is Zeroable
//!   Shared     each field is Shared, and the layout is fixed: repr(C) or repr(transparent)
//!   Renew      each field is renewed, but for those marked #[renew(kept)]
//! ```
//!
//! A struct keeps a promise if each of its fields keeps it, because it is nothing but its fields and
//! padding. So a derive asks the compiler of each field, and a field that breaks the promise is an
//! error at its type. Enums and unions keep none of these by their parts alone: they are refused.
//!
//! Under `--cfg loom` nothing is derived: loom's atomics are objects of the model, not words.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, Index, Member, Result};

/// Derives `sidestep_device::valid::Zeroable`.
#[proc_macro_derive(Zeroable)]
pub fn zeroable(input: TokenStream) -> TokenStream {
    expand(input, |item, fields| Ok(promise(item, fields, &quote!(Zeroable))))
}

/// Derives `sidestep_device::valid::Shared`, and with it `Zeroable`.
#[proc_macro_derive(Shared)]
pub fn shared(input: TokenStream) -> TokenStream {
    expand(input, |item, fields| {
        if !has_fixed_layout(&item.attrs)? {
            let text = "the compiler chooses the layout: another build may choose another one; \
                        add repr(C) or repr(transparent)";
            return Err(Error::new(item.ident.span(), text));
        }
        let (zeroable, shared) = (quote!(Zeroable), quote!(Shared));
        Ok([promise(item, fields, &zeroable), promise(item, fields, &shared)].into_iter().collect())
    })
}

/// Derives `sidestep_device::valid::Renew`. A field marked `#[renew(kept)]` stays as it is.
#[proc_macro_derive(Renew, attributes(renew))]
pub fn renew(input: TokenStream) -> TokenStream {
    expand(input, renewal)
}

fn expand(
    input: TokenStream,
    derive: impl Fn(&DeriveInput, &Fields) -> Result<Tokens>,
) -> TokenStream {
    let derived = syn::parse::<DeriveInput>(input).and_then(|item| {
        let Data::Struct(data) = &item.data else {
            return Err(Error::new(item.ident.span(), "only a struct is what its fields are"));
        };
        let derived = derive(&item, &data.fields)?;
        Ok(quote! {
            #[cfg(not(loom))]
            const _: () = { #derived };
        })
    });
    derived.unwrap_or_else(Error::into_compile_error).into()
}

/// The type implements a trait that each of its fields has.
fn promise(item: &DeriveInput, fields: &Fields, name: &Tokens) -> Tokens {
    let of = quote!(::sidestep_device::valid::#name);
    let asked = fields.iter().map(|Field { ty, .. }| quote_spanned!(ty.span()=> has::<#ty>();));
    let name = &item.ident;
    let (with, parameters, bounds) = item.generics.split_for_impl();
    quote! {
        const _: () = {
            // In an implementation, so that a field may name `Self`.
            #[allow(dead_code)]
            trait Fields {
                fn fields();
            }
            impl #with Fields for #name #parameters #bounds {
                fn fields() {
                    fn has<T: #of + ?Sized>() {}
                    #(#asked)*
                }
            }
        };
        // SAFETY: a struct of fixed or chosen layout is its fields and padding, which any bytes
        // are; the lines above ask the compiler whether each field keeps the promise.
        unsafe impl #with #of for #name #parameters #bounds {}
    }
}

fn renewal(item: &DeriveInput, fields: &Fields) -> Result<Tokens> {
    let mut renewed = Tokens::new();
    for (at, field) in fields.iter().enumerate() {
        if is_kept(field)? {
            continue;
        }
        let member = match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index::from(at)),
        };
        let of = quote_spanned!(field.ty.span()=> ::sidestep_device::valid::Renew::renew);
        renewed.extend(quote!(#of(&self.#member);));
    }
    let name = &item.ident;
    let (with, parameters, bounds) = item.generics.split_for_impl();
    Ok(quote! {
        impl #with ::sidestep_device::valid::Renew for #name #parameters #bounds {
            #[inline]
            fn renew(&self) { #renewed }
        }
    })
}

fn is_kept(field: &Field) -> Result<bool> {
    let mut kept = false;
    for attribute in field.attrs.iter().filter(|it| it.path().is_ident("renew")) {
        attribute.parse_nested_meta(|word| {
            kept = word.path.is_ident("kept");
            if kept { Ok(()) } else { Err(word.error("only `kept` can be said of a field")) }
        })?;
    }
    Ok(kept)
}

fn has_fixed_layout(attributes: &[Attribute]) -> Result<bool> {
    let mut fixed = false;
    for attribute in attributes.iter().filter(|it| it.path().is_ident("repr")) {
        attribute.parse_nested_meta(|word| {
            fixed |= word.path.is_ident("C") || word.path.is_ident("transparent");
            // The number in `align(64)`.
            if word.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in word.input);
                content.parse::<syn::LitInt>()?.to_token_stream();
            }
            Ok(())
        })?;
    }
    Ok(fixed)
}
