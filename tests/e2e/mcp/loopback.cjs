// Preloaded into programs that would listen on all interfaces of this machine: they listen on loopback alone.
// The socket is bound here, since `listen` with a host looks the host up first, and these programs ask for
// the port at once.
const { Server } = require("node:net");
const { TCP, constants } = process.binding("tcp_wrap");

const listen = Server.prototype.listen;
Server.prototype.listen = function (first, ...more) {
  if (typeof first !== "number" && typeof first !== "string") return listen.call(this, first, ...more);
  const handle = new TCP(constants.SERVER);
  const fault = handle.bind("127.0.0.1", Number(first));
  if (fault) throw new Error(`port ${first} of 127.0.0.1 cannot be bound: ${fault}`);
  return listen.call(this, { _handle: handle }, ...more.filter((one) => typeof one === "function"));
};
