//! Texts that are written once and then meant by a number.
#![forbid(unsafe_code)]

use crate::model::fxhash::FxHashMap;
use crate::present::export::perfetto::proto::{Interned, InternedData};

/// Of all texts together. Then both sides forget them and begin again, so that neither grows with the trace.
const MOST_BYTES: usize = 16 << 20;

/// What a text takes beside its bytes, about.
const ENTRY: usize = 64;

#[derive(Debug, Default)]
struct Table {
    ids: FxHashMap<String, u64>,
    bytes: usize,
}

impl Table {
    /// The number of `text`; when it is new, its definition goes to `new`.
    fn id(&mut self, text: &str, new: &mut Vec<Interned>) -> u64 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = self.ids.len() as u64 + 1;
        self.ids.insert(text.to_string(), id);
        self.bytes += text.len() + ENTRY;
        new.push(Interned {
            iid: Some(id),
            text: Some(text.to_string()),
        });
        id
    }
}

#[derive(Debug, Default)]
pub(super) struct Interner {
    categories: Table,
    names: Table,
    annotations: Table,
    texts: Table,
    new: InternedData,
}

impl Interner {
    pub(super) fn category(&mut self, text: &str) -> u64 {
        self.categories.id(text, &mut self.new.event_categories)
    }

    pub(super) fn name(&mut self, text: &str) -> u64 {
        self.names.id(text, &mut self.new.event_names)
    }

    pub(super) fn annotation(&mut self, text: &str) -> u64 {
        self.annotations
            .id(text, &mut self.new.debug_annotation_names)
    }

    pub(super) fn text(&mut self, text: &str) -> u64 {
        self.texts
            .id(text, &mut self.new.debug_annotation_string_values)
    }

    /// What was defined since the last packet.
    pub(super) fn take_new(&mut self) -> Option<InternedData> {
        let new = std::mem::take(&mut self.new);
        (new != InternedData::default()).then_some(new)
    }

    pub(super) fn is_full(&self) -> bool {
        let tables = [
            &self.categories,
            &self.names,
            &self.annotations,
            &self.texts,
        ];
        tables.iter().map(|t| t.bytes).sum::<usize>() > MOST_BYTES
    }
}
