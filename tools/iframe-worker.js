// Runs the search of the site in a hidden frame: a page from a disk may not start a worker.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      // What a script of a worker calls, in the window of the frame.
      this.inside.importScripts = async (...urls) => {
        for (const one of urls) await this.load(one);
      };
      this.inside.postMessage = (data) => {
        this.dispatchEvent(new MessageEvent("message", { data }));
      };
      this.load(url).then(() => this.start());
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.addEventListener("load", resolve);
        script.addEventListener("error", () => reject(new Error(`${url} was not loaded`)));
        script.src = url;
        this.inside.document.head.append(script);
      });
    }

    start() {
      const waiting = this.waiting;
      this.waiting = null;
      waiting.forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
