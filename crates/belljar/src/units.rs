//! Numbers with their units, as people read them.

/// Formats bytes in their largest binary unit.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, unit)| count >= *unit) {
        Some((name, unit)) => {
            let tenths = (u128::from(count) * 10 + u128::from(unit) / 2) / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{count} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_human_readable() {
        for (count, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (512 << 20, "512.0 MiB")] {
            assert_eq!(bytes(count), text);
        }
    }
}
