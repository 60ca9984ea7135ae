"use strict";
const el = id => document.getElementById(id);
// Words of others never become markup.
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; return node; };
const make = (tag, text, kind) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
const show = (node, is) => { node.hidden = !is; };
const list = (node, texts, tag = "li") => {
  const old = node.children;
  texts.forEach((text, at) => old[at] ? put(old[at], text) : node.append(make(tag, text)));
  while (old.length > texts.length) node.lastChild.remove();
};
