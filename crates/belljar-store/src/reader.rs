//! Typed access to the values of a row. Errors name the table and column.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use jiff::Timestamp;
use sqlx::any::AnyRow;
use sqlx::{Any, Decode, Row as _, Type};

use crate::error::StoreError;

/// Row and the table it comes from.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'r> {
    pub(crate) table: &'static str,
    pub(crate) row: &'r AnyRow,
}

impl Reader<'_> {
    pub(crate) fn text(self, column: &str) -> Result<String, StoreError> {
        self.value(column)
    }

    pub(crate) fn optional_text(self, column: &str) -> Result<Option<String>, StoreError> {
        self.value(column)
    }

    pub(crate) fn number(self, column: &str) -> Result<i64, StoreError> {
        self.value(column)
    }

    pub(crate) fn bytes(self, column: &str) -> Result<Vec<u8>, StoreError> {
        self.value(column)
    }

    pub(crate) fn optional_bytes(self, column: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.value(column)
    }

    pub(crate) fn bytes_32(self, column: &str) -> Result<[u8; 32], StoreError> {
        let bytes = self.bytes(column)?;
        <[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_| self.corrupt(column, format!("{} bytes instead of 32", bytes.len())))
    }

    pub(crate) fn time(self, column: &str) -> Result<Timestamp, StoreError> {
        let number = self.number(column)?;
        Timestamp::from_microsecond(number).map_err(|error| self.corrupt(column, error))
    }

    pub(crate) fn optional_time(self, column: &str) -> Result<Option<Timestamp>, StoreError> {
        let number: Option<i64> = self.value(column)?;
        let time = number.map(Timestamp::from_microsecond).transpose();
        time.map_err(|error| self.corrupt(column, error))
    }

    pub(crate) fn parsed<T: FromStr<Err: Display>>(self, column: &str) -> Result<T, StoreError> {
        self.text(column)?.parse().map_err(|error| self.corrupt(column, error))
    }

    pub(crate) fn optional_parsed<T: FromStr<Err: Display>>(
        self,
        column: &str,
    ) -> Result<Option<T>, StoreError> {
        let text = self.optional_text(column)?;
        text.map(|text| text.parse()).transpose().map_err(|error| self.corrupt(column, error))
    }

    pub(crate) fn labels(self, column: &str) -> Result<BTreeMap<String, String>, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| self.corrupt(column, error))
    }

    pub(crate) fn corrupt(self, column: &str, why: impl Display) -> StoreError {
        StoreError::Corrupt { what: format!("{}.{column}", self.table), why: why.to_string() }
    }

    fn value<'a, T: Decode<'a, Any> + Type<Any>>(&'a self, column: &str) -> Result<T, StoreError> {
        self.row.try_get(column).map_err(|error| self.corrupt(column, error))
    }
}

/// Returns the stored form of a time. Parts smaller than a microsecond are lost.
pub(crate) fn stored_time(time: Timestamp) -> i64 {
    time.as_microsecond()
}

pub(crate) fn stored_optional_time(time: Option<Timestamp>) -> Option<i64> {
    time.map(stored_time)
}

/// Refuses a text with a NUL character, which PostgreSQL does not accept.
pub(crate) fn refuse_nul<'t>(
    texts: impl IntoIterator<Item = (&'static str, &'t str)>,
) -> Result<(), StoreError> {
    match texts.into_iter().find(|(_, text)| text.contains('\0')) {
        Some((field, _)) => Err(StoreError::Nul { field }),
        None => Ok(()),
    }
}
