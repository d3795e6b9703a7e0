// Preloaded into programs that would listen on all interfaces of this machine: they listen on loopback alone.
const { Server } = require("node:net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (first, ...more) {
  if (typeof first === "number" || typeof first === "string") {
    const told = more.filter((one) => typeof one === "function");
    return listen.call(this, { port: Number(first), host: "127.0.0.1" }, ...told);
  }
  return listen.call(this, first, ...more);
};
