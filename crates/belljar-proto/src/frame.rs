//! Messages before the first byte of HTTP/2 on a connection: each is its length, as 4 bytes in network order, and its bytes.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum length of such a message, in bytes.
const MAX_FRAME_BYTES: u32 = 1 << 20;

/// Reads one message, and nothing after it.
///
/// # Errors
/// Fails if it is longer than 1 MiB, or the stream ends or breaks before its end.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    if length > MAX_FRAME_BYTES {
        let text = format!("a message of {length} bytes; at most {MAX_FRAME_BYTES} are accepted");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // Nothing is reserved for what has been announced alone.
    let mut message = Vec::new();
    stream.take(length.into()).read_to_end(&mut message).await?;
    if message.len() as u64 != u64::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

/// Writes one message.
///
/// # Errors
/// Fails if it is longer than 1 MiB, or the stream breaks.
pub async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).ok().filter(|length| *length <= MAX_FRAME_BYTES);
    let length =
        length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(message).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_exact_and_bounded() {
        let (mut one, mut other) = tokio::io::duplex(64);
        write_frame(&mut one, b"first").await.unwrap();
        write_frame(&mut one, b"").await.unwrap();
        one.write_all(b"\0\x10\0\x01").await.unwrap();
        assert_eq!(read_frame(&mut other).await.unwrap(), b"first");
        assert_eq!(read_frame(&mut other).await.unwrap(), b"");
        assert_eq!(read_frame(&mut other).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        one.write_all(b"\0\0\0\x09short").await.unwrap();
        drop(one);
        assert_eq!(read_frame(&mut other).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let long = vec![0; MAX_FRAME_BYTES as usize + 1];
        assert!(write_frame(&mut tokio::io::sink(), &long).await.is_err());
    }
}
