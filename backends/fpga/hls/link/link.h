// Several values on one link, none of which can block another.
//
//   values ─► gather ─► send ══ packets ══► receive ─► scatter ─► values
//                        ▲                               │
//                        └────────── credits ◄─ acknowledge
//
// Beats hold as many whole tokens as they have room for, and travel in packets of up to PACKET behind
// a header with the value's number and the count. A packet is sent only when all its beats are there
// and the other side has room: each value has a window of WINDOW packets, and a credit comes back, on
// the link's other direction, for each one that has been drained. So a value that nobody reads yet
// waits by itself.
#ifndef PIPEC_LINK_H
#define PIPEC_LINK_H

#include "ap_axi_sdata.h"
#include "hls_stream.h"

// One process of a dataflow region; a simulation may run it as a thread.
#ifndef TASK
#define TASK(...) __VA_ARGS__
#define DATAFLOW_END
#endif

namespace links {

constexpr int FLIT_BYTES = 64;
constexpr int PACKET = 16;
constexpr int WINDOW = 32;

template <int BYTES>
struct raw {
  unsigned char byte[BYTES];
};

using flit = raw<FLIT_BYTES>;

template <int BYTES>
using word = hls::axis<raw<BYTES>, 0, 0, 0>;

template <int BYTES>
using axis_stream = hls::stream<word<BYTES>>;

constexpr int packet_at(int beats, int at) { return beats - at < PACKET ? beats - at : PACKET; }

template <int BYTES>
word<BYTES> worded(const raw<BYTES> &data, bool last) {
  word<BYTES> found;
  found.data = data;
  found.keep = -1;
  found.strb = -1;
  found.last = last;
  return found;
}

// The same bytes in a beat of another width: cut short, or with zeros behind.
template <int TO, int FROM>
raw<TO> resized(const raw<FROM> &from) {
  raw<TO> to;
  for (int i = 0; i < TO; ++i) {
#pragma HLS UNROLL
    to.byte[i] = i < FROM ? from.byte[i < FROM ? i : 0] : 0;
  }
  return to;
}

// The tokens of a beat move to the place before theirs, and another one takes the last place.
template <int BYTES>
void shift(flit &beat, const raw<BYTES> &last) {
#pragma HLS INLINE
  constexpr int BEHIND = (FLIT_BYTES / BYTES - 1) * BYTES;
  for (int i = 0; i < BEHIND; ++i) {
#pragma HLS UNROLL
    beat.byte[i] = beat.byte[i + BYTES];
  }
  for (int i = 0; i < BYTES; ++i) {
#pragma HLS UNROLL
    beat.byte[BEHIND + i] = last.byte[i];
  }
}

// Tokens of a value to packets of beats: a count is given on once its beats are there.
template <int BYTES, int TOKENS>
void gather(int frames, axis_stream<BYTES> &in, hls::stream<flit> &beats,
            hls::stream<int> &ready) {
  constexpr int EACH = FLIT_BYTES / BYTES, BEATS = (TOKENS + EACH - 1) / EACH;
  flit beat = flit();
#pragma HLS ARRAY_PARTITION variable = beat.byte complete
  for (int f = 0; f < frames; ++f) {
    int left = TOKENS;
    for (int at = 0; at < BEATS; at += PACKET) {
      const int count = packet_at(BEATS, at);
      for (int i = 0; i < count; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
        for (int k = 0; k < EACH; ++k) {
#pragma HLS PIPELINE II = 1
          raw<BYTES> token = raw<BYTES>();
          if (left > 0) token = in.read().data;
          --left;
          shift(beat, token);
          if (k == EACH - 1) beats.write(beat);
        }
      }
      ready.write(count);
    }
  }
}

// Packets of N values to the link, in turn; ends when all have been sent and acknowledged.
template <int N>
void send(int packets, hls::stream<flit> (&beats)[N], hls::stream<int> (&ready)[N],
          axis_stream<FLIT_BYTES> &back, axis_stream<FLIT_BYTES> &out) {
  int credit[N];
#pragma HLS ARRAY_PARTITION variable = credit complete
  for (int v = 0; v < N; ++v) {
#pragma HLS UNROLL
    credit[v] = WINDOW;
  }
  int turn = 0, sent = 0, returned = 0;
  while (sent < packets || returned < packets) {
    word<FLIT_BYTES> credited;
    if (back.read_nb(credited)) {
      ++credit[credited.data.byte[0]];
      ++returned;
    }
    int count = 0;
    if (credit[turn] > 0 && ready[turn].read_nb(count)) {
      --credit[turn];
      ++sent;
      raw<2> header;
      header.byte[0] = static_cast<unsigned char>(turn);
      header.byte[1] = static_cast<unsigned char>(count);
      out.write(worded(resized<FLIT_BYTES>(header), false));
      for (int i = 0; i < count; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
        out.write(worded(beats[turn].read(), i == count - 1));
      }
    }
    turn = turn == N - 1 ? 0 : turn + 1;
  }
}

// Packets from the link to the values' FIFOs, which have room for them.
template <int N>
void receive(int packets, axis_stream<FLIT_BYTES> &in, hls::stream<flit> (&beats)[N]) {
  for (int p = 0; p < packets; ++p) {
    const flit header = in.read().data;
    const int value = header.byte[0], count = header.byte[1];
    for (int i = 0; i < count; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
      beats[value].write(in.read().data);
    }
  }
}

// A value's tokens to the kernel; TLAST marks the end of a frame.
template <int BYTES, int TOKENS>
void scatter(int frames, hls::stream<flit> &beats, axis_stream<BYTES> &out,
             hls::stream<int> &drained) {
  constexpr int EACH = FLIT_BYTES / BYTES, BEATS = (TOKENS + EACH - 1) / EACH;
  flit beat = flit();
#pragma HLS ARRAY_PARTITION variable = beat.byte complete
  for (int f = 0; f < frames; ++f) {
    int left = TOKENS;
    for (int at = 0; at < BEATS; at += PACKET) {
      const int count = packet_at(BEATS, at);
      for (int i = 0; i < count; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
        for (int k = 0; k < EACH; ++k) {
#pragma HLS PIPELINE II = 1
          if (k == 0) beat = beats.read();
          if (left > 0) out.write(worded(resized<BYTES>(beat), left == 1));
          --left;
          shift(beat, raw<BYTES>());
        }
      }
      drained.write(count);
    }
  }
}

// A credit for every packet that was drained.
template <int N>
void acknowledge(int packets, hls::stream<int> (&drained)[N], axis_stream<FLIT_BYTES> &back) {
  int value = 0;
  for (int done = 0; done < packets;) {
    int count = 0;
    if (drained[value].read_nb(count)) {
      raw<1> credit;
      credit.byte[0] = static_cast<unsigned char>(value);
      back.write(worded(resized<FLIT_BYTES>(credit), true));
      ++done;
    }
    value = value == N - 1 ? 0 : value + 1;
  }
}

}  // namespace links

#endif
