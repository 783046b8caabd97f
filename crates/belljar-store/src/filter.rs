//! Builder for the conditions of a query. Values are always bound, never written into the SQL text.

use std::fmt::Write as _;

use jiff::Timestamp;
use sqlx::any::AnyArguments;
use sqlx::{Any, Arguments as _, AssertSqlSafe, Encode, Type};

use crate::database::Statement;
use crate::error::StoreError;
use crate::reader::stored_time;

/// A query under construction.
pub(crate) struct Filter {
    sql: String,
    arguments: AnyArguments,
    count: usize,
    conditions: usize,
}

impl Filter {
    /// Starts with everything up to the condition, as in `SELECT a FROM b`.
    pub(crate) fn new(select: &'static str) -> Self {
        Self { sql: select.to_owned(), arguments: AnyArguments::default(), count: 0, conditions: 0 }
    }

    /// Adds a condition with AND. Each `?` in it stands for the value at the same position.
    pub(crate) fn and<T>(&mut self, condition: &'static str, values: &[T]) -> Result<(), StoreError>
    where
        T: Clone + for<'q> Encode<'q, Any> + Type<Any>,
    {
        self.sql.push_str(if self.conditions == 0 { " WHERE " } else { " AND " });
        self.conditions += 1;
        self.push(condition, values)
    }

    /// Adds the condition of a page in the order of creation: what comes after this time and id.
    pub(crate) fn after(&mut self, position: Option<(Timestamp, &str)>) -> Result<(), StoreError> {
        if let Some((created_at, id)) = position {
            self.and("(created_at, id) > (?", &[stored_time(created_at)])?;
            self.push(", ?)", &[id.to_owned()])?;
        }
        Ok(())
    }

    /// Adds SQL text. Each `?` in it stands for the value at the same position.
    pub(crate) fn push<T>(&mut self, text: &'static str, values: &[T]) -> Result<(), StoreError>
    where
        T: Clone + for<'q> Encode<'q, Any> + Type<Any>,
    {
        let mut pieces = text.split('?');
        self.sql.push_str(pieces.next().unwrap_or_default());
        for (piece, value) in pieces.zip(values) {
            self.arguments.add(value.clone()).map_err(|source| StoreError::Statement {
                action: "query the store",
                source: sqlx::Error::Encode(source),
            })?;
            self.count += 1;
            // Writing to a String does not fail.
            let _ = write!(self.sql, "${}{piece}", self.count);
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Statement<'static> {
        sqlx::query_with(AssertSqlSafe(self.sql), self.arguments)
    }
}
