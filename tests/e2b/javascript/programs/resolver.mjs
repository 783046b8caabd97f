// Resolves every name below localhost to this machine, which not every resolver does. Loaded before a program (--import).
import dns from "node:dns";

const { lookup } = dns;
const LOOPBACK = { address: "127.0.0.1", family: 4 };

dns.lookup = (name, options, callback) => {
  if (!name.endsWith(".localhost")) {
    return lookup(name, options, callback);
  }
  const done = callback ?? options;
  return process.nextTick(() => (options.all ? done(null, [LOOPBACK]) : done(null, LOOPBACK.address, LOOPBACK.family)));
};
