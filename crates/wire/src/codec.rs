//! The gRPC codec for frames. It counts the messages of a frame before it decodes them, like
//! [`frame::decode`](super::frame::decode). Otherwise it is the usual codec.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use super::frame::{FrameError, has_too_many};

/// The codec of the generated server and client.
#[derive(Debug)]
pub struct FrameCodec<T, U>(PhantomData<(T, U)>);

/// The decoder of a [`FrameCodec`].
#[derive(Debug, Default)]
pub struct FrameDecoder<U>(ProstDecoder<U>);

impl<T, U> Default for FrameCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for FrameCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = FrameDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        FrameDecoder(ProstDecoder::default())
    }
}

impl<U: Message + Default> Decoder for FrameDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, frame: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The buffer holds the whole frame in one chunk.
        if has_too_many(frame.chunk()) {
            return Err(Status::resource_exhausted(FrameError::TooMany.to_string()));
        }
        self.0.decode(frame)
    }
}
